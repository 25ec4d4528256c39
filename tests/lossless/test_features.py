"""Texts with feature drafts (Medusa, EAGLE, DFlash …) are the target's: chains and trees, greedy and drawn, and swaps.

Distributions as in tests/lossless/test_distribution.py: 1,500 engine samples of two-token texts against the target's
own probabilities, a chi-square test at level 1e-4. With the eleven cases below a false alarm has odds of at most 1 in
900 for fresh seeds; the seeds are fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from osd.drafters.feature_drafter import FeatureDraftModel
from osd.drafters.feature_tree import FeatureTrees
from osd.drafters.residency import LoadedVersion
from osd.engine.engine import Engine
from osd.gamma.factory import CONTROLLERS
from osd.models.acceptance_head import AcceptanceHead, HeadConfig, HeadPass
from osd.models.features.decoder import feature_model
from osd.models.features.new import KINDS
from osd.models.pair import Pair
from storage.records import DEFAULT_DRAFT, Request
from storage.sampling import Sampling
from tests.lossless.test_distribution import LEVEL, PROMPT, SAMPLES, exact, p_value
from tests.lossless.test_lossless import serve
from tests.support.features import feature_pair, trained
from tests.support.models import CONFIGS, alone, prompts, random_pair
from tests.support.params import some_of
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")

COUNT = 24
BASE = {
    "serve__max_batch": 4, "serve__max_length": 96, "gamma__rule": "fixed", "gamma__initial": 4, "gamma__max": 8,
    "drafters__tree_nodes": 12,
}  # fmt: skip


def engine_of(pair: Pair, drafter: str, **chosen: object) -> Engine:
    return Engine(pair, settings_of(**{**BASE, "drafters__kind": drafter, **chosen}))


def rates(engine: Engine, asked: Sequence[Request]) -> tuple[float, float]:
    """Accepted and drafted tokens a round."""
    rounds = [each for completion in engine.run(asked) for each in completion.rounds]
    return (
        sum(each.accepted for each in rounds) / len(rounds),
        sum(each.drafted for each in rounds) / len(rounds),
    )


SHORT = {
    ("llama", "eagle"), ("llama", "medusa"), ("qwen3", "eagle3"), ("gpt2", "eagle"), ("gpt_neox", "eagle3"),
    ("llama", "dflash"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        pytest.param(family, kind, marks=() if (family, kind) in SHORT else pytest.mark.long)
        for family in CONFIGS
        for kind in KINDS
    ],
)
def test_every_architecture_in_ragged_batches(family: str, kind: str) -> None:
    pair = feature_pair(kind, family)
    asked = [Request(p, max_new_tokens=8 + 4 * i) for i, p in enumerate(prompts(9, seed=3))]
    expected = [alone(pair.target.module, r.prompt_tokens, r.max_new_tokens) for r in asked]
    for drafter, batch in (("causal", 1), ("causal", 5), ("tree", 3), ("tree", 8)):
        engine = engine_of(pair, drafter, serve__max_batch=batch)
        assert serve(engine, asked) == expected, f"{drafter}, batch {batch}"
    alone_, together = rates(engine_of(pair, "tree", serve__max_batch=1), asked), rates(engine, asked)
    assert alone_ == together, "what a row drafts hangs on its own text"
    accepted, drafted = alone_
    assert accepted > 0.6 and drafted > 8, "drafts are taken and refused"


def depths(engine: Engine, asked: Sequence[Request]) -> set[int]:
    return {each.depth for completion in engine.run(asked) for each in completion.rounds}


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=1)])
@pytest.mark.parametrize("kind", some_of(KINDS, "eagle", "dflash"))
def test_rules_that_ask_a_signal_say_how_deep_a_tree_grows(kind: str, sampling: Sampling) -> None:
    """A threshold that no level reaches leaves the first, one that every level reaches leaves them all."""
    asked = [Request(p, max_new_tokens=12, sampling=sampling) for p in prompts(4, seed=6)]
    pair, most = feature_pair(kind), 4 if kind == "medusa" else 6
    told = {"gamma__rule": "confidence", "gamma__initial": 6, "gamma__max": 6}
    shallow = depths(engine_of(pair, "tree", **told, gamma__confidence__threshold=0.999), asked)
    deep = depths(engine_of(pair, "tree", **told, gamma__confidence__threshold=1e-6), asked)
    assert max(shallow) < most and max(deep) == most


def estimates(drafter: str, head: HeadPass, **chosen: object) -> list[tuple[int, int, float]]:
    """What an acceptance head said of one row's tokens: the pass, its nodes or tokens, the signal."""
    engine = engine_of(feature_pair("eagle"), drafter, gamma__rule="specdecpp", serve__max_batch=1, **chosen)
    engine.pool.head, heard, asked = head, [], engine.planner.should_continue

    def listening(rows: Any, lengths: list[int], drafted: int, read: Any) -> None:
        heard.append((drafted, lengths[0], read("acceptance")[0]))
        asked(rows, lengths, drafted, read)

    engine.planner.should_continue = listening  # type: ignore[method-assign]
    list(engine.run([Request(prompts(1, seed=6)[0], max_new_tokens=16)]))
    return heard


def test_a_head_says_of_a_trees_level_what_it_says_of_its_nodes() -> None:
    """A tree one node wide is a chain. Of two nodes under one, one at most is right: estimates add up."""
    head = AcceptanceHead(HeadConfig(feature_pair("eagle").draft.draft.hidden_size, 0, 1.0, "a", "a"))  # type: ignore[attr-defined]
    torch.nn.init.normal_(head.out.weight, generator=torch.Generator().manual_seed(0))
    drawn = HeadPass(head, torch.device("cpu"))
    long = {"gamma__max": 6, "gamma__initial": 6, "gamma__specdecpp__threshold": 0.999}
    chain, tree = (estimates(drafter, drawn, **long, drafters__tree_nodes=6) for drafter in ("causal", "tree"))
    assert len(chain) > 6 and [each[0] for each in chain] == [each[0] for each in tree]
    deep, wide = ([each[2] for each in heard if each[1] == 6] for heard in (chain, tree))  # shorter trees are wider
    assert len(deep) > 12 and deep == pytest.approx(wide, abs=1e-5)
    torch.nn.init.zeros_(head.out.weight), torch.nn.init.constant_(head.out.bias, -2.0)
    said = estimates("tree", HeadPass(head, torch.device("cpu")), **long, drafters__tree_nodes=12)
    one = torch.tensor(-2.0).sigmoid().item()
    whole = {round(signal / one, 3) for drafted, length, signal in said if (drafted, length) == (2, 6)}
    assert whole == {2.0}, "of the root's two children"


def test_rules_hear_of_levels_that_are_there() -> None:
    """With few nodes a tree has fewer levels than it may: of what is not drafted it would learn wrongly."""
    engine = engine_of(
        feature_pair("eagle"), "tree", gamma__rule="confidence", gamma__initial=8, serve__max_batch=1,
        gamma__confidence__threshold=1e-6, drafters__tree_nodes=3,
    )  # fmt: skip
    asked, heard = engine.planner.should_continue, []

    def listening(rows: Any, lengths: list[int], drafted: int, read: Any) -> None:
        heard.extend(drafted for length in lengths if length >= drafted)
        asked(rows, lengths, drafted, read)

    engine.planner.should_continue = listening  # type: ignore[method-assign]
    rounds = [Request(p, max_new_tokens=12) for p in prompts(3, seed=6)]
    assert max(depths(engine, rounds)) == max(heard) < 8


@pytest.mark.parametrize(
    ("drafter", "controller"),
    [
        pytest.param(drafter, rule, marks=() if drafter == "tree" or rule == "goodput" else pytest.mark.long)
        for drafter in ("tree", "causal", "blended")
        for rule in CONTROLLERS
    ],
)
def test_every_controller(drafter: str, controller: str) -> None:
    pair = feature_pair("eagle", eos=5)
    asked = [Request(p, max_new_tokens=COUNT) for p in prompts(6, seed=4)]
    expected = [alone(pair.target.module, r.prompt_tokens, COUNT, eos=5) for r in asked]
    assert serve(engine_of(pair, drafter, gamma__rule=controller), asked) == expected


@pytest.mark.parametrize("drafter", ["causal", "tree"])
@pytest.mark.parametrize("kind", some_of(KINDS, "eagle3", "dflash"))
def test_a_swap_in_the_middle_of_requests_changes_nothing(kind: str, drafter: str) -> None:
    """Weights of the same kind are exchanged in place; of another kind, new rows get it and old ones keep theirs."""
    pair = feature_pair(kind)
    others = [
        trained(other, pair.target, steps=steps, seed=7) for other, steps in ((kind, 0), (kind, 60), ("eagle", 20))
    ]
    asked = [Request(p, max_new_tokens=40) for p in prompts(12, seed=6)]
    engine = engine_of(pair, drafter)
    versions, done, steps = set(), {}, 0
    for request in asked:
        engine.submit(request)
    while engine.busy:
        for output in engine.step():
            if output.completion:
                done[output.request_id] = list(output.completion.tokens)
                versions |= {each.draft_version for each in output.completion.rounds}
        steps += 1
        if steps % 4 == 0:
            arrive(engine, pair, others[steps // 4 % 3], f"version-{steps // 4}")
    assert [done[r.id] for r in asked] == [alone(pair.target.module, r.prompt_tokens, 40) for r in asked]
    assert len(versions) > 4


def arrive(engine: Engine, pair: Pair, draft: Any, version: str) -> None:
    """Let a version of the default draft in, as the swap does between two steps."""
    model = feature_model(version, draft, pair.target)
    loaded = LoadedVersion(DEFAULT_DRAFT, version, model.limit, version, model.decoder(1, 96), 1, owned=True)
    assert engine.draft_manager.residence.let_in(loaded) == "taken"


@pytest.mark.parametrize("drafter", ["causal", "tree"])
def test_routes_of_feature_drafts_and_ordinary_ones_share_a_batch(drafter: str) -> None:
    """Each row has its own draft; a hidden state that is asked for late is computed again for rows that lack it."""
    pair = random_pair("llama")
    engine = engine_of(pair, drafter, serve__max_batch=6, serve__prefill_tokens=64)
    asked = [Request(p, max_new_tokens=30) for p in prompts(18, seed=6, longest=60)]
    served: set[str] = set()
    kinds = ("eagle3", "peagle", "dflash")
    seats = {request.id: (DEFAULT_DRAFT, *kinds)[i % 4] for i, request in enumerate(asked)}
    join = engine.pool.join
    engine.pool.join = lambda row, draft: join(row, seats[row.request.id])  # type: ignore[method-assign]
    for request in asked:
        engine.submit(request)
    done, steps = {}, 0
    while engine.busy:
        if steps in (1, 4, 7):
            kind = kinds[steps // 3]
            model = feature_model(kind, trained(kind, pair.target), pair.target)
            loaded = LoadedVersion(kind, kind, model.limit, kind, model.decoder(1, 96), 1, owned=True)
            assert engine.draft_manager.residence.let_in(loaded) == "taken"
        for output in engine.step():
            if output.completion:
                done[output.request_id] = list(output.completion.tokens)
                served |= {each.draft_version for each in output.completion.rounds}
        steps += 1
    assert [done[r.id] for r in asked] == [alone(pair.target.module, r.prompt_tokens, 30) for r in asked]
    assert set(kinds) < served


@pytest.mark.parametrize("kind", some_of(KINDS, "eagle3", "mtp"))
def test_prompts_from_the_prefix_cache_and_in_pieces(kind: str) -> None:
    """What the target did not compute again has its hidden states from the cache."""
    pair = feature_pair(kind)
    begin = prompts(1, seed=1, longest=1)[0] + tuple(range(2, 72))
    asked = [Request((*begin, 5 + i), max_new_tokens=12) for i in range(5)]
    expected = [alone(pair.target.module, r.prompt_tokens, 12) for r in asked]
    cold = engine_of(pair, "tree", serve__max_batch=1, serve__prefix_cache_mb=0)
    warm = engine_of(pair, "tree", serve__max_batch=1, serve__prefix_cache_mb=64, serve__prefill_tokens=64)
    assert serve(cold, asked) == serve(warm, asked) == expected
    assert warm.stats.prefix_hits >= 4 * 64
    assert rates(cold, asked) == rates(warm, asked)


def test_a_bounded_cache_keeps_hidden_states_too() -> None:
    pair = feature_pair("eagle3")
    asked = [Request(p, max_new_tokens=30) for p in prompts(6, seed=2)]
    engine = engine_of(pair, "tree", serve__cache_mb=1)
    assert serve(engine, asked) == [alone(pair.target.module, r.prompt_tokens, 30) for r in asked]
    cache = engine.target.cache
    assert cache.features and cache.total and cache.layout.used <= cache.total


CASES = [
    ("eagle", "tree", Sampling(1.0), 64, None),
    pytest.param("eagle", "tree", Sampling(0.7, top_k=6, top_p=0.9), 3, None, marks=pytest.mark.long),
    ("eagle3", "tree", Sampling(1.0), 64, (1, 2, 4, 5, 8)),
    ("medusa", "tree", Sampling(1.0), 64, None),
    ("dflash", "causal", Sampling(1.0), 64, None),
    ("peagle", "causal", Sampling(1.0), 64, None),
    pytest.param("dflash", "tree", Sampling(1.0), 64, (1, 2, 4, 5, 8), marks=pytest.mark.long),
    pytest.param("peagle", "tree", Sampling(0.7, top_k=6, top_p=0.9), 3, None, marks=pytest.mark.long),
    pytest.param("eagle", "causal", Sampling(0.8), 8, (1, 2, 4, 5, 8), marks=pytest.mark.long),
    pytest.param("medusa", "causal", Sampling(1.0), 1, None, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("kind", "drafter", "sampling", "batch", "token_map"), CASES)
def test_two_tokens_follow_the_target(
    kind: str, drafter: str, sampling: Sampling, batch: int, token_map: tuple[int, ...] | None
) -> None:
    pair = feature_pair(kind, vocabulary=9, steps=15, token_map=token_map)
    seen, several = sample(pair, drafter, sampling, batch)
    assert p_value(seen, exact(pair, sampling)) > LEVEL
    assert several == (drafter == "tree"), "nodes with several drawn children are what is tested"


def sample(
    pair: Pair, drafter: str, sampling: Sampling, batch: int, **chosen: object
) -> tuple[Counter[tuple[int, ...]], bool]:
    """Texts, and whether a node had several drawn children."""
    told = {"gamma__initial": 2, "drafters__tree_nodes": 8, **chosen}
    engine = engine_of(pair, drafter, serve__max_batch=batch, **told)
    plain, several = Request(PROMPT, max_new_tokens=3, ignore_eos=True), False
    asked = (replace(plain, id=str(seed), sampling=replace(sampling, seed=seed)) for seed in range(SAMPLES))
    propose = engine.drafting.propose

    def watched(*args: Any) -> Any:
        nonlocal several
        draft = propose(*args)
        several |= any(max(tree.turns(), default=-1) > 0 for tree in draft.trees or ())
        return draft

    engine.drafting.propose = watched  # type: ignore[method-assign]
    return Counter(c.tokens[:2] for c in engine.run(asked)), several


def test_a_rule_that_stops_within_a_tree_keeps_the_distribution() -> None:
    """Some trees end after their first level, others do not, by what the draft says there."""
    pair = feature_pair("eagle", vocabulary=9, steps=15)
    told = {"gamma__rule": "confidence", "gamma__confidence__threshold": 0.3}
    seen, several = sample(pair, "tree", Sampling(1.0), 4, **told)
    assert several and p_value(seen, exact(pair, Sampling(1.0))) > LEVEL
    asked = [Request(PROMPT, 8, Sampling(1.0, seed=seed), ignore_eos=True) for seed in range(24)]
    assert {1, 2} <= depths(engine_of(pair, "tree", gamma__initial=2, drafters__tree_nodes=8, **told), asked)


def test_leaving_out_what_was_drawn_for_what_it_is_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a node's drawn children the likeliest alone is verified, as the first one drawn."""
    pair = feature_pair("eagle", vocabulary=9, steps=15)
    draw = FeatureTrees._draw

    def likeliest(self: FeatureTrees, row: int, *args: Any) -> list[int]:
        new = draw(self, row, *args)
        tree = self.trees[row]
        keep = max(new, key=lambda node: tree.likely[node]) if new else 0
        if keep > min(new, default=0):
            first = min(new)
            tree.tokens[first - 1], tree.tokens[keep - 1] = tree.tokens[keep - 1], tree.tokens[first - 1]
            tree.places = {(p, t): i for i, (p, t) in enumerate(zip(tree.parents, tree.tokens, strict=True), 1)}
        return new

    monkeypatch.setattr(FeatureTrees, "_draw", likeliest)
    assert p_value(sample(pair, "tree", Sampling(1.0), 64)[0], exact(pair, Sampling(1.0))) < LEVEL


def test_greedy_rows_and_rows_that_sample_share_a_batch() -> None:
    pair = feature_pair("eagle")
    texts = prompts(8, seed=8)
    asked = [Request(p, 20, Sampling(float(i % 2), seed=i)) for i, p in enumerate(texts)]
    served_ = serve(engine_of(pair, "tree", serve__max_batch=8), asked)
    assert served_[::2] == [alone(pair.target.module, r.prompt_tokens, 20) for r in asked[::2]]
    assert serve(engine_of(pair, "tree", serve__max_batch=1), asked) == served_, "a seed repeats its text"


def test_rows_leave_and_move_in_every_cache() -> None:
    """Rows end early and the last one takes their place, in the target's cache and in the draft's."""
    pair = feature_pair("eagle")
    asked = [Request(p, max_new_tokens=3 + 7 * (i % 4)) for i, p in enumerate(prompts(24, seed=9))]
    engine = engine_of(pair, "tree", serve__max_batch=7)
    assert serve(engine, asked) == [alone(pair.target.module, r.prompt_tokens, r.max_new_tokens) for r in asked]
    assert rates(engine, asked) == rates(engine_of(pair, "tree", serve__max_batch=1), asked)
    assert isinstance(engine.pool.default.body, FeatureDraftModel)
