"""Feature drafts that osd makes and teaches draft in a real vLLM as they do in osd's own engine, and newer versions of
them are published into it while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.vllm.server import PLUGIN, WORKER, plugin_variables, speculation
from benchmarks.vllm.server import vllm_server as server
from osd.attached.trials import selftest
from osd.attached.vllm.engine import VllmEngine
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.demo import TARGET
from osd.demo.runner.process import worker_beside
from osd.hotswap.new_draft import new_feature_version
from osd.models.features import new
from osd.models.features.new import Kind
from storage.store import open_store
from tests.integration.vllm.conftest import (
    TOKEN,
    Reply,
    Serving,
    acceptance,
    ask,
    free_port,
    home_of,
    ids_of,
    some_prompts,
    steps_of,
    until,
)  # fmt: skip
from tests.integration.vllm.heads import GAMMA, Steps, alone, for_engines, osd_steps, settings_for, teach

pytestmark = pytest.mark.vllm
TAUGHT, TRIED = 80, 16
UNTRACKED = ("--model-loader-extra-config", '{"enable_weights_track": false}')
"""vLLM 0.32 takes the vocabulary of Medusa heads, and then misses it among what it has loaded."""


def vllm_steps(replies: Sequence[Reply]) -> list[Steps]:
    return [Steps(ids, *steps_of(reply), first=1) for ids, reply in zip(ids_of(replies), replies, strict=True)]


def by_position(answers: Sequence[Steps]) -> list[float]:
    """Return accepted ÷ drafted in all, then the share of rounds that accepted each position of the chain."""
    rounds = [kept for answer in answers for kept in answer.by_place.values()]
    shares = [sum(kept > place for kept in rounds) / len(rounds) for place in range(GAMMA)]
    return [sum(shares) / GAMMA, *shares]


def agreeing(theirs: Sequence[Steps], ours: Sequence[Steps]) -> float:
    """Return the share of rounds behind the same text that accepted the same."""
    both = [
        (kept, own.by_place[place])
        for one, own in zip(theirs, ours, strict=True)
        for place, kept in one.by_place.items()
        if place in own.by_place
    ]
    return sum(one == other for one, other in both) / len(both)


@pytest.mark.parametrize(
    ("kind", "vocabulary"),
    [
        ("eagle", None), ("eagle3", None), ("eagle3", 512), ("medusa", None), ("medusa", 512), ("peagle", None),
        ("dflash", None), ("dflash", 512),
    ],
)  # fmt: skip
def test_a_taught_head_drafts_as_in_our_engine_and_is_exchanged(
    python: Path, folder: Path, plugin: str, kind: Kind, vocabulary: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new, "BLOCK", GAMMA + 1)  # vLLM masks as many positions as it drafts
    if kind == "dflash":
        monkeypatch.setattr(new, "LAYERS", 1)  # its CPU build norms keys of all layers by the first one's weights
    settings = settings_for(folder / f"{kind}-{vocabulary}", TARGET, vocabulary)
    taught = some_prompts("sql", 2 * TAUGHT)
    versions = teach(settings, kind, [taught[:TAUGHT], taught[TAUGHT:]])
    folders = [for_engines(settings, version) for version in versions]
    prompts = some_prompts("sql", TRIED, skip=2 * TAUGHT)
    said, ours = alone(TARGET, prompts), [osd_steps(TARGET, each, prompts) for each in folders]
    assert all([one.tokens for one in each] == said for each in ours)
    assert by_position(ours[2])[1] > max(0.2, by_position(ours[0])[1])

    def holds(url: str, number: int) -> None:
        found = vllm_steps(ask(url, prompts))
        assert [one.tokens for one in found] == said
        assert by_position(found)[0] == pytest.approx(by_position(ours[number])[0], abs=0.02)
        assert agreeing(found, ours[number]) > 0.99

    options = (*speculation(folders[1], kind), *PLUGIN, *WORKER, *(UNTRACKED if vocabulary else ()))
    variables = plugin_variables(folder, TOKEN, "http://127.0.0.1:1") | {"PYTHONPATH": plugin, "OSD_VLLM_SPOOL": ""}
    with server(python, TARGET, folder / f"{kind}-{vocabulary}.log", options, variables) as url:
        engine = VllmEngine(url, TOKEN)
        assert engine.probe().method == kind
        holds(url, 1)
        for number in (2, 0, 1):
            digest = weights_digest(folders[number])
            assert [rank.sha256 for rank in engine.publish(folders[number], digest, str(number))] == [digest]
            holds(url, number)
        selftest(engine)


@pytest.mark.parametrize("kind", ["medusa", "peagle", "dflash"])
def test_heads_that_propose_at_once_draft_as_many_tokens_as_they_are_told(
    python: Path, folder: Path, plugin: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the text stays the target's: vLLM asserts the number of some of them."""
    monkeypatch.setattr(new, "BLOCK", GAMMA + 1)
    monkeypatch.setattr(new, "LAYERS", 1)
    settings, prompts = settings_for(folder / f"{kind}-lengths", TARGET), some_prompts("sql", 6)
    with open_store(settings) as store:
        made = new_feature_version(store, "default", str(TARGET), kind)
    lengths = ("--scheduler-cls", "osd_vllm.scheduler.OsdScheduler")
    variables = plugin_variables(folder, TOKEN, "http://127.0.0.1:1") | {
        "PYTHONPATH": plugin, "OSD_VLLM_SPOOL": "", "OSD_VLLM_GAMMA": str(folder / f"{kind}-gamma.json"),
    }  # fmt: skip
    options = (*speculation(for_engines(settings, made), kind), *PLUGIN, *WORKER, *lengths)
    said = alone(TARGET, prompts)
    with server(python, TARGET, folder / f"{kind}-lengths.log", options, variables) as url:
        engine = VllmEngine(url, TOKEN)
        assert ids_of(ask(url, prompts)) == said, "it rests"
        for length in (GAMMA, 1, 2, 0):
            engine.set_gamma([(1, 4, length)])
            until(lambda length=length: max(steps_of(ask(url, prompts[:1])[0])[1][4:], default=0) == length)
            found = ask(url, prompts)
            assert ids_of(found) == said
            drafted = {each for one in found for each in steps_of(one)[1][1:-GAMMA]}
            assert drafted == {length} or not (length or any(drafted)), "of answers without drafts no step is told"


@pytest.fixture(scope="module")
def eagle(python: Path, folder: Path, plugin: str) -> Iterator[Serving]:
    """A vLLM with EAGLE of random weights, which hands its answers over."""
    settings = settings_for(folder / "made", TARGET)
    with open_store(settings) as store:
        draft = store.versions.folder(new_feature_version(store, "default", str(TARGET), "eagle"))
    port = free_port()
    variables = plugin_variables(folder, TOKEN, f"http://127.0.0.1:{port}") | {
        "PYTHONPATH": plugin, "OSD_VLLM_SPOOL": ""
    }  # fmt: skip
    options = (*speculation(draft, "eagle"), *PLUGIN, *WORKER)
    with server(python, TARGET, folder / "attached.log", options, variables) as url:
        yield Serving(url, folder, draft, port)


def test_a_head_of_random_weights_learns_from_what_vllm_answers(eagle: Serving) -> None:
    learn = {"teacher": "recompute", "epochs": 2, "batch_positions": 256, "replay_requests": 160}
    asked, more = some_prompts("sql", 160), some_prompts("sql", 24, skip=160)
    before = ids_of(eagle.ask(more))
    with home_of(eagle, "heads", learn) as home:
        done = home.osd("engines", "add", eagle.url, "--draft", "heads")
        assert done.returncode == 0, done.stderr
        versions = home.store.versions
        until(lambda: versions.serving("heads"))
        with worker_beside(home.config, eagle.folder / "heads-worker.log"):
            first = eagle.ask(asked)
            until(lambda: versions.current("heads").number >= 2)
        until(lambda: versions.serving("heads").get("vllm") == versions.current("heads").id)
        last = eagle.ask(more)
        assert versions.current("heads").kind == "eagle"
        assert acceptance(first[:30]) < 0.05 < 0.2 < acceptance(last)
        assert ids_of(last) == before
