"""A real vLLM whose draft has random weights learns from what it answers, and no answer changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.vllm.server import WORKER, plugin_variables
from benchmarks.vllm.server import vllm_server as server
from osd.attached.base import EngineUnsuited
from osd.attached.trials import selftest
from osd.attached.vllm.engine import VllmEngine
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.demo import TARGET
from osd.demo.runner.process import worker_beside
from storage.records import RequestSamples, TokenKind
from tests.integration.vllm.conftest import (
    TOKEN,
    Home,
    Reply,
    Serving,
    acceptance,
    ask,
    home_of,
    ids_of,
    some_prompts,
    steps_of,
    until,
)  # fmt: skip

pytestmark = pytest.mark.vllm
ASKED, MORE = 160, 40


@pytest.fixture(scope="module")
def home(vllm: Serving) -> Iterator[Home]:
    """A store to which the engine is attached. Nothing trains yet."""
    with home_of(vllm, "learning") as found:
        done = found.osd("engines", "add", vllm.url, "--draft", "sql")
        assert done.returncode == 0, done.stderr
        until(lambda: found.store.versions.serving("sql"))
        yield found
        found.osd("engines", "remove", "vllm")


@pytest.fixture(scope="module")
def learned(vllm: Serving, home: Home) -> list[Reply]:
    """Answers before, while and after the draft learned."""
    versions = home.store.versions
    selftest(vllm.engine)
    with worker_beside(home.config, vllm.folder / "worker.log"):
        found = vllm.ask(some_prompts("sql", ASKED))
        until(lambda: versions.current("sql").number >= 2)
    until(lambda: versions.serving("sql").get("vllm") == versions.current("sql").id)
    found += vllm.ask(some_prompts("sql", MORE, skip=ASKED))
    until(lambda: sum(row.requests for row in home.store.outcomes.acceptance()) >= len(found))
    return found


def test_a_random_draft_learns(home: Home, learned: list[Reply]) -> None:
    versions, latest = home.store.versions, home.store.outcomes.recent(limit=1)[0].draft_version
    root = versions.lineage(versions.current("sql").id)[-1].id
    by_version = {row.by["version"]: row for row in home.store.outcomes.acceptance(by=["version"])}
    first, last = by_version[root].draft_acceptance_rate, by_version[latest].draft_acceptance_rate
    assert first is not None and last is not None and first < 0.05 and last > 0.3
    assert acceptance(learned[:30]) < 0.05 and acceptance(learned[-MORE:]) > 0.5


def test_answers_are_those_of_a_vllm_without_speculation(
    python: Path, folder: Path, plugin: str, learned: list[Reply]
) -> None:
    variables = plugin_variables(folder, TOKEN, "http://127.0.0.1:1") | {"PYTHONPATH": plugin}
    options = (
        "--middleware",
        "osd_vllm.harvest.Harvest",
        *WORKER,
    )  # vLLM refuses the metrics' flag without speculation
    with server(python, TARGET, folder / "plain.log", options, variables) as url:
        engine = VllmEngine(url, TOKEN)
        assert ids_of(ask(url, some_prompts("sql", ASKED + MORE))) == ids_of(learned)
        with pytest.raises(EngineUnsuited, match="start it with --speculative-config"):
            engine.probe()
        with pytest.raises(EngineUnsuited, match="without a draft model"):
            engine.publish(folder / "draft", weights_digest(folder / "draft"), "v")


def test_counts_and_refused_tokens_are_those_of_the_tap(vllm: Serving, home: Home, learned: list[Reply]) -> None:
    """Every round's counts as vLLM gives them, and every refused token that was recovered."""
    rounds, samples = vllm.tapped(), _samples(home)
    counted = recovered = 0
    for reply in learned:
        told = rounds[_id_of(rounds, reply)]
        accepted, drafted = steps_of(reply)
        assert accepted == [len(one["emitted"]) - 1 for one in told]
        assert drafted == [len(one["drafted"]) for one in told]
        counted += len(told)
        sample = samples[_text(reply)]
        place, begin = 1, sample.prompt_len
        for one, kept in zip(told, accepted, strict=True):
            place += kept
            if kept < len(one["drafted"]) and place < len(sample.tokens) - begin:
                at = int((sample.positions == begin + place).nonzero()[0][0])
                if sample.kinds[at] == TokenKind.REJECTED:
                    assert sample.drafted[at] == one["drafted"][kept]
                    recovered += 1
            place += 1
    refused = sum(one.rejections for one in home.store.outcomes.recent(limit=len(learned)))
    assert counted > 1000 and recovered > 0.9 * refused  # the rest: answers during which a version was loaded


def test_an_adapter_is_merged_and_published(vllm: Serving, home: Home, learned: list[Reply]) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    versions, current = home.store.versions, home.store.versions.current("sql")
    base = versions.folder(current)

    def write(folder: Path) -> None:
        torch.manual_seed(3)
        module = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        adapted = get_peft_model(module, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
        adapted.save_pretrained(str(folder))

    adapter = versions.stage("sql", current.id, "lora", write)
    versions.promote(adapter.id)
    until(lambda: versions.serving("sql").get("vllm") == adapter.id)
    exported = vllm.folder / "merged-sql"
    assert home.osd("drafts", "export", adapter.id, exported).returncode == 0
    assert vllm.engine.served()[0].sha256 == weights_digest(exported) != weights_digest(base)
    prompts = some_prompts("sql", 8)
    assert ids_of(vllm.ask(prompts)) == ids_of(learned[:8])


def test_draft_lengths_are_tried_and_applied_live(vllm: Serving, home: Home, learned: list[Reply]) -> None:
    tuned = home.osd("engines", "tune", vllm.url, "--apply", "--json")
    assert tuned.returncode == 0, tuned.stderr
    schedule = json.loads(tuned.stdout)["schedule"]
    assert schedule[0][0] == 1 and schedule[-1][1] == 4
    assert json.loads((vllm.folder / "gamma.json").read_text()) == schedule
    prompts = some_prompts("sql", 8)
    vllm.engine.set_gamma([(1, 1, 2), (2, 4, 0)])
    until(lambda: max(steps_of(vllm.ask(prompts[:1])[0])[1], default=0) == 2)
    loaded = vllm.ask(prompts)  # four at a time: nothing is drafted while there are two or more
    assert ids_of(loaded) == ids_of(learned[:8])
    assert sum(map(sum, (steps_of(one)[1] for one in loaded))) < 0.5 * sum(sum(steps_of(one)[1]) for one in learned[:8])
    vllm.engine.set_gamma([(1, 4, 4)])
    until(lambda: max(steps_of(vllm.ask(prompts[:1])[0])[1], default=0) == 4)


def _samples(home: Home) -> dict[tuple[int, ...], RequestSamples]:
    ids = [one.request_id for one in home.store.outcomes.recent(limit=1000)]
    return {tuple(one.tokens.tolist()): one for one in home.store.samples.read(ids)}


def _text(reply: Reply) -> tuple[int, ...]:
    choice = reply["choices"][0]
    return (*choice["prompt_token_ids"], *choice["token_ids"])


def _id_of(rounds: dict[str, list[Reply]], reply: Reply) -> str:
    """vLLM puts an index and a suffix behind a request's id."""
    return next(name for name in rounds if name.startswith(reply["id"]))
