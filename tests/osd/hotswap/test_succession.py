"""What drafts learned goes over to a target's successor once it was judged there, and not where it is no good."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from osd.engine.session import serving
from osd.hotswap import succession
from osd.hotswap.succession import judge_heir, read, weight_of
from osd.models.pair import Pair, load_pair
from storage.names import line_name
from storage.records import Request, VersionState
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.support.models import noisy, prompts, random_module

Pairs = dict[str, Pair]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    serve = {"max_batch": 2, "max_length": 96, "swap_poll_seconds": 0.05, "successors": True}
    return load_settings(storage={"directory": tmp_path / "data"}, serve=serve)


@pytest.fixture
def pairs(tmp_path: Path) -> Pairs:
    """A target, one that was trained a little, and one that says other things, each with the same draft."""
    target = random_module("llama")
    noisy(target, 0.8).save_pretrained(tmp_path / "draft")
    targets = {"one": target, "near": noisy(target, 0.05, seed=2), "far": random_module("llama", seed=5)}
    for name, module in targets.items():
        module.save_pretrained(tmp_path / name)
    return {name: load_pair(tmp_path / name, tmp_path / "draft", device="cpu") for name in targets}


def serve(store: Store, settings: Settings, pair: Pair, seed: int = 0, learned: object = None) -> tuple[str, float]:
    """Serve some requests, publish what was ``learned`` meanwhile; the first version that drafted, its acceptance."""
    with serving(pair, settings, store) as engine:
        done = list(engine.run([Request(prompt, 16) for prompt in prompts(6, seed=seed)]))
        engine.recorder.wait()  # type: ignore[union-attr]
    if learned is not None:
        current = store.versions.current("default", pair.target.digest)
        staged = store.versions.stage(current.draft, current.id, "full", learned.save_pretrained)  # type: ignore
        store.versions.promote(staged.id)
    rounds = [one for each in done for one in each.rounds]
    accepted, drafted = sum(one.accepted for one in rounds), sum(one.drafted for one in rounds)
    return rounds[0].draft_version, accepted / max(1, drafted)


def test_a_draft_goes_on_under_a_successor_and_not_under_another_target(
    store: Store, settings: Settings, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, near, far = (str(pairs[name].target.digest) for name in ("one", "near", "far"))
    serve(store, settings, pairs["one"], learned=noisy(random_module("llama"), 0.05))
    version, _ = serve(store, settings, pairs["near"], seed=1)
    heir = store.versions.get(version)
    assert heir.draft == line_name("default", near) and heir.number == 1, "it serves from the first round on"
    assert heir.evidence["heir_of"] == store.versions.current("default", one).id
    assert heir.evidence["judged_on"] == near and heir.evidence["after"] > heir.evidence["before"]
    assert 0 < store.targets.divergence(near)[one]["default"] < 0.4
    monkeypatch.setattr(succession.HeirJudgement, "good", False)
    version, _ = serve(store, settings, pairs["far"], seed=2)
    refused = store.versions.list(line_name("default", far))
    assert version == refused[0].id and [one.state for one in refused[1:]] == [VersionState.REJECTED]
    assert store.targets.ancestors(far) == [near, one]
    apart = [store.targets.divergence(far)[old]["default"] for old in (near, one)]
    assert min(apart) > 1.5 * store.targets.divergence(near)[one]["default"]


def test_nothing_goes_over_without_a_successor(store: Store, settings: Settings, pairs: Pairs) -> None:
    alone = settings.changed(serve={"successors": False})
    serve(store, alone, pairs["one"], learned=noisy(random_module("llama"), 0.05))
    version, _ = serve(store, alone, pairs["near"], seed=1)
    assert store.versions.get(version).number == 0
    assert len(store.versions.list(line_name("default", str(pairs["near"].target.digest)))) == 1


def test_distributions_are_those_of_a_plain_pass(store: Store, settings: Settings, pairs: Pairs) -> None:
    serve(store, settings, pairs["one"])
    texts = store.samples.read(store.samples.recent(limit=3))
    decoder, module = pairs["near"].target.decoder(1, 96), pairs["near"].target.module
    for text in texts:
        logits = module(torch.tensor([text.tokens.tolist()])).logits[0].softmax(-1)
        for some in (text, replace(text, positions=text.positions[1::2])):
            torch.testing.assert_close(read(decoder, some), logits[torch.from_numpy(some.positions).long() - 1])


def test_an_heir_serves_where_it_is_no_worse_than_number_0() -> None:
    positions = [10, 20, 30, 40]
    good = judge_heir([6, 13, 19, 25], [5, 10, 15, 20], positions)
    assert good is not None and good.good and good.after == pytest.approx(0.63) and good.before == 0.5
    worse = judge_heir([6, 13, 19, 25], [7, 14, 20, 26], positions)
    assert worse is not None and not worse.good
    assert judge_heir([6], [5], [10]) is None
    assert [weight_of(d) for d in (0.0, 0.25, 0.5, 0.9)] == [1.0, 0.5, 0.0, 0.0]
