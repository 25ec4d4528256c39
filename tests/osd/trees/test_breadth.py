"""What a node is expected to bring, by hand, and how many nodes a tree has for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osd.trees.breadth import TRUST, Chances, bar_of, pruned, steps
from osd.trees.tree import Tree, chain


def tree_of(*pairs: tuple[int, int]) -> Tree:
    tree = Tree()
    for parent, token in pairs:
        tree.add(parent, token)
    return tree


def test_chances_are_counted_by_depth_and_rank_under_what_was_kept() -> None:
    """Root → a (rank 0), b (rank 1); under b: c, d. The target takes b, d: of a's children nothing is learned."""
    tree, chances = tree_of((0, 1), (0, 2), (1, 9), (2, 3), (2, 4)), Chances()
    for _ in range(12):
        chances.saw(tree, 0, [2, 4])
    first, second = chances.branches[0], chances.branches[1]
    assert [(cell.tries, cell.kept) for cell in first[:3]] == [(12, 0), (12, 12), (0, 0)]
    assert [(cell.tries, cell.kept) for cell in second[:2]] == [(12, 0), (12, 12)]
    assert first[1].chance == pytest.approx((12 + TRUST * 0.4 / 2**1.5) / (12 + TRUST))
    gains = chances.gains(tree, 0)
    assert gains[4] == pytest.approx(first[1].chance * second[1].chance)
    assert gains[2] == pytest.approx(first[0].chance * second[0].chance)


def test_the_drafts_own_chain_is_counted_for_itself() -> None:
    tree, chances = chain([5, 6], drawn=False), Chances()
    tree.add(0, 7)
    for _ in range(1000):
        chances.saw(tree, 2, [5])
    assert chances.chain[0].chance > 0.99 and chances.chain[1].chance < 0.02 and chances.branches[0][0].chance < 0.01
    assert chances.reach(0.1, 12) == 1 and chances.reach(0.0, 12) == 12 and chances.reach(0.1, 0) == 0
    assert chances.reach(2.0, 3) == 1  # a chain of one is always tried


@pytest.mark.parametrize(
    ("ms", "kept"),
    [
        # a token 0.1 ms beside 1 ms: rates 1/1, 1.5/1.1, 1.75/1.2, 1.85/1.3, 1.9/1.4: two nodes are best
        (lambda n: 1 + 0.1 * n, 2),
        (lambda n: 1.0, 4),  # tokens that cost nothing: all
        (lambda n: 1.0 + n, 0),  # 1/1, 1.5/2, …: none
        (lambda n: None, 4),  # nothing is known: all
    ],
)
def test_the_bar_makes_the_most_tokens_a_millisecond(ms, kept: int) -> None:  # type: ignore[no-untyped-def]
    gains = [0.5, 0.25, 0.1, 0.05]
    assert sum(gain >= bar_of(gains, 1.0, 0, ms) for gain in gains) == kept


def test_a_larger_batch_pays_for_all_rows_and_fixed_tokens_count() -> None:
    costs: list[int] = []
    bar_of([0.5, 0.4], 2.5, 3, lambda n: costs.append(n) or 1.0)  # type: ignore[func-returns-value]
    assert costs == [3, 4, 5]


@given(st.integers(0, 300))
def test_counts_that_are_tried_grow_and_end_with_all(most: int) -> None:
    found = steps(most)
    assert found == sorted(set(found)) and found[0] == 0 and found[-1] == most and len(found) < 20


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=30), st.integers(0, 4), st.floats(0, 1))
def test_what_is_left_is_connected_and_keeps_the_chain(pairs: list[tuple[int, int]], own: int, bar: float) -> None:
    tree = chain(list(range(own)), drawn=True)
    for parent, token in pairs:
        tree.add(min(parent, len(tree)), 10 + token)
    gains = Chances().gains(tree, own)
    left = pruned(tree, own, gains, bar)
    paths = [tuple(path_of(tree, node)) for node in range(1, len(tree) + 1)]
    kept = {tuple(path_of(left, node)) for node in range(1, len(left) + 1)}
    assert kept == {path for i, path in enumerate(paths) if i < own or gains[i] >= bar}
    assert left.drawn == own and left.tokens[:own] == tree.tokens[:own]


def path_of(tree: Tree, node: int) -> list[int]:
    return [] if node == 0 else [*path_of(tree, tree.parents[node - 1]), tree.tokens[node - 1]]
