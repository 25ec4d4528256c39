"""Who drafts, by the settings, with the proposers that ship."""

from __future__ import annotations

import pytest

from osd.drafters.model_free import LookupProposer, TableProposer
from osd.drafters.tree import TreeDrafter
from osd.engine.engine import Engine
from osd.models.pair import Pair, row_length
from storage.errors import CannotServeTrees
from storage.records import Request
from tests.osd.test_draft import blind
from tests.support.models import alone, prompts, random_pair
from tests.support.proposers import Guessing
from tests.support.settings import changed, settings_of

BASE = settings_of(serve__max_batch=3, serve__max_length=96, gamma__rule="fixed", gamma__initial=4, gamma__max=6)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return random_pair("llama")


@pytest.mark.parametrize("drafter", ["trigram", "lookup"])
def test_whoever_drafts_the_text_is_the_targets(pair: Pair, drafter: str) -> None:
    """Every prompt comes three times: what the table has learned by then, it proposes."""
    engine = Engine(pair, changed(BASE, drafters__kind=drafter))
    assert engine.target.cache.length == row_length(pair, engine.settings) == 96 + 24 + 1
    asked = [Request(p * 2, max_new_tokens=24) for _ in range(3) for p in prompts(4, seed=5)]
    done = {c.request.id: c for c in engine.run(asked)}
    for request in asked:
        assert list(done[request.id].tokens) == alone(pair.target.module, request.prompt_tokens, 24)
    late = [r for request in asked[8:] for r in done[request.id].rounds]
    assert {r.draft_version for r in late} == {drafter}
    if drafter == "trigram":
        assert sum(r.accepted for r in late) > len(late)


def test_a_chain_is_served_without_looking_at_trees(pair: Pair) -> None:
    """The target may be one that cannot serve trees, and the cache is not made longer for them."""
    broken = Pair(blind(pair.target), pair.draft, None, frozenset())
    assert Engine(broken, BASE).target.cache.length == 96 + 6 + 1
    with pytest.raises(CannotServeTrees):
        Engine(broken, changed(BASE, drafters__kind="lookup"))


def test_the_caller_may_bring_a_proposer(pair: Pair) -> None:
    proposer = Guessing(97, {})
    engine = Engine(pair, changed(BASE, drafters__kind="lookup", drafters__tree_nodes=9), proposer=proposer)
    list(engine.run([Request(p, max_new_tokens=12) for p in prompts(3)]))
    assert {nodes for _, nodes in proposer.asked} == {9} and not proposer.here


def test_a_cancelled_row_leaves_its_proposer(pair: Pair) -> None:
    engine = Engine(pair, changed(BASE, drafters__kind="trigram"))
    proposer = engine.drafting.proposer  # type: ignore[attr-defined]
    assert isinstance(proposer, TableProposer) and not isinstance(proposer, LookupProposer)
    asked = [Request(p, max_new_tokens=20) for p in prompts(3)]
    for request in asked:
        engine.submit(request)
    engine.step()
    assert len(proposer._places) == 3
    assert engine.cancel(asked[1].id)
    assert len(proposer._places) == 2
    list(engine.run([]))
    assert not proposer._places


@pytest.mark.parametrize(("kind", "fed"), [("llama", (12, 6)), ("gpt2", (20, 8))])
def test_what_a_tree_costs_beside_a_chain_is_part_of_drafting(kind: str, fed: tuple[int, int]) -> None:
    """Two rows with trees of 9 and 1 tokens, 3 and 1 deep: the lean pass computes the tokens, others the width of the
    widest."""
    engine = Engine(random_pair(kind), changed(BASE, drafters__kind="lookup"))
    assert isinstance(engine.drafting, TreeDrafter)
    pruner = engine.drafting.pruner
    assert pruner.target.packs == (kind == "llama")
    pruner.depths, pruner.sizes = [3, 1], [9, 1]
    assert pruner.round_ms(2.0, engine.costs) == 2.0  # nothing was timed yet
    for tokens in fed:
        for _ in range(40):
            engine.costs.observe_verify(2, tokens, 1.0 + 0.1 * tokens)
    assert pruner.round_ms(2.0, engine.costs) - 2.0 == pytest.approx(0.1 * (fed[0] - fed[1]), rel=0.02)
