"""How a tree grows, what its tensors say, and that models compute it as they compute texts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from osd.draft_tree import Tree, chain, graft, moves
from osd.models.attention_metadata import lay_out, tables
from osd.models.forward import ForwardPass
from osd.models.kv_cache import RaggedCache
from osd.models.model import Model
from osd.models.ragged_attention import Share, group
from osd.models.tree_check import check_model
from storage.errors import BadProposal, CannotServeTrees
from tests.support.models import CONFIGS, model_of, random_module


def proposal(*pairs: tuple[int, int]) -> SimpleNamespace:
    """(token, parent) pairs."""
    return SimpleNamespace(tokens=[t for t, _ in pairs], parents=[p for _, p in pairs])


def texts(tree: Tree) -> set[tuple[int, ...]]:
    """The text up to every node."""
    ways: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        ways.append((*ways[parent], token))
    assert len(set(ways)) == len(ways)  # siblings differ
    return set(ways)


@st.composite
def proposals(draw: st.DrawFn) -> SimpleNamespace:
    size = draw(st.integers(0, 14))
    return proposal(*((draw(st.integers(0, 3)), draw(st.integers(-1, i - 1))) for i in range(size)))


def plain_graft(own: list[int], given: SimpleNamespace, depth: int, nodes: int) -> set[tuple[int, ...]]:
    """Texts, without nodes: one for each proposed token whose text before it is there, while there is room."""
    there = {tuple(own[:n]) for n in range(len(own) + 1)}
    ways: list[tuple[int, ...]] = [()]
    for token, parent in zip(given.tokens, given.parents, strict=True):
        way = (*ways[parent + 1], token)
        ways.append(way)
        if way[:-1] in there and len(way) <= depth and len(there) <= nodes:
            there.add(way)
    return there


@given(st.lists(st.integers(0, 3), max_size=4), proposals(), st.integers(0, 5), st.integers(0, 12))
def test_a_proposal_grows_into_the_tree_as_far_as_it_fits(
    own: list[int], given: SimpleNamespace, depth: int, nodes: int
) -> None:
    tree = graft(chain(own, drawn=True), given, depth, nodes, vocabulary=4)
    assert texts(tree) == plain_graft(own, given, depth, nodes)
    assert tree.tokens[: len(own)] == own and tree.drawn == len(own)  # the chain stays whole, whatever the limits
    assert tree.parents[: len(own)] == list(range(len(own)))
    assert all(parent < node for node, parent in enumerate(tree.parents, 1))
    assert tree.is_chain == (max(tree.depths()) == len(tree))
    for node in range(len(tree) + 1):
        assert tree.reach(node) >= tree.depths()[node]


def test_reach_is_how_far_the_way_goes_on() -> None:
    tree = graft(Tree(), proposal((1, -1), (2, -1), (3, 1), (4, 2), (5, 0)), 9, 9, vocabulary=9)
    assert [tree.reach(node) for node in range(6)] == [3, 2, 3, 3, 3, 2]
    assert tree.follow([0, 2]) == [2, 3] and tree.follow([0]) == [1] and tree.follow([0, 1, 5]) == [1, 5]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (proposal((1, 0)), "token 0 follows token 0"),
        (proposal((1, -1), (1, -2)), "token 1 follows token -2"),
        (proposal((1, -1), (9, 0)), "token 1 is 9, outside the vocabulary of 9"),
        (SimpleNamespace(tokens=[1], parents=[]), "1 tokens with 0 parents"),
    ],
)
def test_what_is_no_tree_is_refused(given: SimpleNamespace, says: str) -> None:
    with pytest.raises(BadProposal, match=says):
        graft(Tree(), given, 5, 5, vocabulary=9)


@given(st.lists(proposals(), min_size=1, max_size=3), st.integers(0, 70))
def test_the_mask_shows_ancestors_only(some: list[SimpleNamespace], longer: int) -> None:
    trees = [graft(Tree(), each, 9, 99, vocabulary=4) for each in some]
    trees[0] = graft(trees[0], proposal(*((0, i - 1) for i in range(longer))), 99, 99, vocabulary=4)  # beyond 64 nodes
    width = max(len(tree) for tree in trees) + 1
    layout = lay_out(trees, width, torch.device("cpu"))
    for row, tree in enumerate(trees):
        for node in range(width):
            up, seen = node if node <= len(tree) else 0, {0}
            depth = 0
            while up:
                seen.add(up)
                up, depth = tree.parents[up - 1], depth + 1
            assert set(layout.seen[row, node].nonzero().flatten().tolist()) == seen
            assert int(layout.depths[row, node]) == depth
    parents, turns = tables(trees, width, torch.device("cpu"))
    assert parents.tolist() == [[*t.parents, *[-1] * (width - len(t))] for t in trees] and bool((turns == -1).all())


def test_a_path_closes_up_all_at_once() -> None:
    """Also where a token moves to a place that another one leaves."""
    cache = RaggedCache(2, 3, 10, torch.device("cpu"), torch.float32, 10)
    before = torch.arange(31.0).view(1, 31, 1)
    for layer in cache.ragged:
        layer.lazy_initialization(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
        for kept in layer.kept:
            kept.copy_(before)
    cache.close_up([4, 0, 1], [(0, *move) for move in moves([0, 2, 3, 5])] + [(2, *move) for move in moves([0, 1, 7])])
    expected = torch.arange(31.0)
    expected[[5, 6, 7]] = torch.tensor([6.0, 7.0, 9.0])
    expected[23] = 28.0
    for layer in cache.ragged:
        assert all(torch.equal(kept.flatten(), expected) for kept in layer.kept)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_architecture_computes_trees(kind: str) -> None:
    check_model(model_of(random_module(kind)))


class Blind:
    """A pass that sees everything up to its own slot, as it may in a chain."""

    packs, alone, encode, compiled = False, False, None, None

    def __init__(self, inner: ForwardPass) -> None:
        self._inner = inner

    def __call__(self, tokens: torch.Tensor, cache: RaggedCache, last: torch.Tensor | None) -> torch.Tensor:
        slots = cache.feed.slots.view(len(tokens), -1) % cache.length
        mask = torch.where(torch.arange(cache.feed.span) <= slots.unsqueeze(-1), 0.0, torch.finfo().min)
        (rows, width), span = tokens.shape, cache.feed.span
        groups = group([Share(0, rows, rows * width, width, 0, span)], [width] * rows, mask.unsqueeze(1))
        cache.feed = replace(cache.feed, mask=mask.unsqueeze(1), groups=groups)
        return self._inner(tokens, cache, last)

    def fill(self, tokens: torch.Tensor, cache: RaggedCache) -> None:
        self(tokens, cache, torch.zeros(len(tokens), dtype=torch.long))


def blind(model: Model) -> Model:
    """The same model with a blind pass."""

    def build(module: object) -> ForwardPass:
        forward = model.build(model.module)
        assert forward is not None
        return Blind(forward)

    return replace(model, build=build)


def test_a_model_that_ignores_who_sees_whom_is_refused() -> None:
    with pytest.raises(CannotServeTrees, match=r"differ by .* causal"):
        check_model(blind(model_of(random_module("llama"))))
