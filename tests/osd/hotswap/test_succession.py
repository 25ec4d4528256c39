"""What drafts learned goes over to a target's successor once it was judged there, and not where it is no good."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from osd.engine.session import serving
from osd.hotswap import succession
from osd.hotswap.succession import Succession, break_even, judge_heir, read, rests, weight_of
from osd.models.pair import Pair, load_pair
from storage.names import line_name
from storage.records import DraftVersion, Request, VersionState, new_id
from storage.settings import Settings, load_settings
from storage.store import Store
from storage.versions.heirs import waiting_heir
from tests.storage.make import outcome, write_weights
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
        publish(store, pair, learned, {})
    rounds = [one for each in done for one in each.rounds]
    accepted, drafted = sum(one.accepted for one in rounds), sum(one.drafted for one in rounds)
    return rounds[0].draft_version, accepted / max(1, drafted)


def publish(store: Store, pair: Pair, learned: object, judged: dict[str, object]) -> DraftVersion:
    """Publish a version of the draft's line about this target."""
    current = store.versions.current("default", pair.target.digest)
    staged = store.versions.stage(current.draft, current.id, "full", learned.save_pretrained)  # type: ignore
    return store.versions.settle_heir(staged.id, judged, good=True)


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


def test_distributions_are_those_of_a_plain_pass(
    store: Store, settings: Settings, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(store, settings, pairs["one"])
    texts = store.samples.read(store.samples.recent(limit=3))
    decoder, module = pairs["near"].target.decoder(1, 96), pairs["near"].target.module
    for text in texts:
        logits = module(torch.tensor([text.tokens.tolist()])).logits[0].softmax(-1)
        for some in (text, replace(text, positions=text.positions[1::2])):
            for most in (256, 5):  # positions in memory at once
                monkeypatch.setattr(succession, "CHUNK", most)
                parts = list(read(decoder, some))
                torch.testing.assert_close(torch.cat(parts), logits[torch.from_numpy(some.positions).long() - 1])
                assert max(map(len, parts)) <= most


def test_texts_are_read_piece_by_piece_as_in_one(
    store: Store, settings: Settings, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(store, settings, pairs["one"])
    text = store.samples.read(store.samples.recent(limit=1))[0]
    target, draft = pairs["near"].target.decoder(1, 96), pairs["near"].draft.decoder(1, 96)
    p, q = (torch.cat(list(read(one, text))) for one in (target, draft))
    old = torch.from_numpy(text.topk_logprobs).float().exp()
    shared = torch.minimum(old, p.gather(1, torch.from_numpy(text.topk_ids).long())).sum(1) / old.sum(1)
    for most in (256, 5):
        monkeypatch.setattr(succession, "CHUNK", most)
        found = succession.read_text(text, target, draft, target)
        assert found.expected == pytest.approx([float(torch.minimum(p, q).sum()), len(text)], rel=1e-5)
        assert found.divergence == pytest.approx(float((1 - shared).clamp(min=0).sum()), rel=1e-4)


@pytest.mark.parametrize("good", [True, False])
def test_where_drafting_loses_the_line_learns_on_and_nothing_is_drafted(
    store: Store, settings: Settings, pairs: Pairs, monkeypatch: pytest.MonkeyPatch, good: bool
) -> None:
    """Number 0, where it is better than the heir, is held to the same; a rule that weighs costs finds out itself."""
    fixed = settings.changed(gamma={"rule": "fixed", "initial": 2})
    learned, near = noisy(random_module("llama"), 0.05), pairs["near"]
    serve(store, fixed, pairs["one"], learned=learned)
    monkeypatch.setattr(succession, "break_even", lambda store, line: 0.995)
    monkeypatch.setattr(succession.HeirJudgement, "good", good)
    version, _ = serve(store, fixed, near, seed=1)
    served = store.versions.get(version)
    assert served.number == good and rests(store, served)

    rules = []

    def drafted(using: Settings, **asked: int) -> int:
        with serving(near, using, store) as engine:
            engine.listeners.append(lambda rows, *_: rules.extend(row.controller.name for row in rows))
            done = list(engine.run([Request(prompt, 16, **asked) for prompt in prompts(2)]))  # type: ignore[arg-type]
        return sum(one.drafted for each in done for one in each.rounds)

    assert drafted(fixed) == 0 and store.samples.recent(served.draft, limit=1), "it learns on"
    assert drafted(fixed, gamma=2) > 0, "who asks for a length gets it"
    drafted(settings.changed(gamma={"rule": "goodput"}))
    assert rules[-1] == "goodput"
    assert rests(store, publish(store, near, learned, {"after": 0.99})) and drafted(fixed) == 0
    assert not rests(store, publish(store, near, learned, {"after": 0.996})) and drafted(fixed) > 0


def test_a_verdict_that_comes_while_a_server_runs_is_heard(
    store: Store, settings: Settings, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer judges an heir where no server could: number 0 serves meanwhile, and rests once it is known to
    lose."""
    fixed, near = settings.changed(gamma={"rule": "fixed", "initial": 2}), pairs["near"]
    serve(store, fixed, pairs["one"], learned=noisy(random_module("llama"), 0.05))
    monkeypatch.setattr(Succession, "_texts", lambda *_: [])
    with serving(near, fixed, store) as engine:

        def drafted() -> int:
            return sum(one.drafted for each in engine.run([Request(prompts(1)[0], 16)]) for one in each.rounds)

        assert drafted() > 0
        heir = waiting_heir(store, line_name("default", str(near.target.digest)))
        assert heir is not None
        store.versions.settle_heir(heir.id, {"before": 0.2, "after": 0.1, "break_even": 0.9}, good=False)
        assert engine.swap is not None
        end = time.monotonic() + 60
        while not engine.swap.resting and time.monotonic() < end:
            time.sleep(0.05)
        assert drafted() == 0


def test_what_drafting_costs_is_told_by_rounds_that_draft_and_not_by_tries(store: Store, tmp_path: Path) -> None:
    """All of a draft count, about whatever target: of a few rounds alone it is told by what else the machine did."""
    write_weights(tmp_path / "draft", 1.0)
    first, second = (store.versions.register_root("default", tmp_path / "draft", target=one * 64) for one in "ab")
    other = store.versions.register_root("default-2", tmp_path / "draft", target="a" * 64)
    assert break_even(store, first.draft) == 0.0, "it served none"

    def serve(version: DraftVersion, drafted: int, draft_ms: float, rounds: int = 100) -> None:
        served = outcome(
            request_id=new_id(), draft_version=version.id, rounds=rounds, drafted=drafted, draft_ms=draft_ms
        )
        store.outcomes.add([replace(served, verify_ms=500.0)], "w")

    serve(first, 20, 200.0)
    assert break_even(store, first.draft) == 0.0, "a try of one row takes as long as a draft for all"
    serve(second, 180, 300.0)
    serve(other, 400, 9000.0)
    serve(second, 0, 0.0, rounds=10_000)  # a line that rests tells nothing of what drafting takes
    assert break_even(store, first.draft) == break_even(store, second.draft)
    assert break_even(store, second.draft) == pytest.approx(500 / 1000, abs=2e-3), "a token a round: α = c"
    serve(first, 600, 1000.0)  # 800 tokens in 300 rounds, 1500 ms of draft passes beside the target's 1500
    length = 800 / 300
    alpha = break_even(store, first.draft)
    assert (1 - alpha ** (length + 1)) / (1 - alpha) == pytest.approx(2.0, abs=5e-3)
    assert break_even(store, other.draft) > 1, "no acceptance pays for a draft that takes longer than its target"


def test_an_heir_serves_where_it_is_no_worse_than_number_0() -> None:
    positions = [10, 20, 30, 40]
    good = judge_heir([6, 13, 19, 25], [5, 10, 15, 20], positions, 0.0)
    assert good is not None and good.good and good.after == pytest.approx(0.63) and good.before == 0.5
    worse = judge_heir([6, 13, 19, 25], [7, 14, 20, 26], positions, 0.0)
    assert worse is not None and not worse.good
    assert judge_heir([6], [5], [10], 0.0) is None
    assert [weight_of(d) for d in (0.0, 0.25, 0.5, 0.9)] == [1.0, 0.5, 0.0, 0.0]
