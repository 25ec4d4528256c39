"""What a node is expected to bring, by hand, and how many nodes a tree has for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osd.draft_tree import Tree, chain, graft
from osd.drafters.tree_pruning import (
    TRUST,
    TreeCalibration,
    bar_of,
    gains,
    judge_nodes,
    likeliest,
    pruned,
    tried_counts,
)
from storage.errors import BadProposal


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
    free = [0.5, 0.25, 0.1, 0.05]
    assert sum(gain >= bar_of(free, 1.0, 0, ms) for gain in free) == kept


def test_where_all_are_worth_it_there_is_no_bar_for_the_trees_to_come() -> None:
    assert bar_of([0.5, 0.25, 0.1], 1.0, 0, lambda n: 1.0) == 0


def test_a_larger_batch_pays_for_all_rows_and_fixed_tokens_count() -> None:
    costs: list[int] = []
    bar_of([0.5, 0.4], 2.5, 3, lambda n: costs.append(n) or 1.0)  # type: ignore[func-returns-value]
    assert costs == [3, 4, 5]


@given(st.integers(0, 300))
def test_counts_that_are_tried_grow_and_end_with_all(most: int) -> None:
    found = tried_counts(most)
    assert found == sorted(set(found)) and found[0] == 0 and found[-1] == most and len(found) < 20


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=30), st.integers(0, 4), st.integers(0, 20))
def test_the_likeliest_are_connected_and_keep_what_was_drawn(pairs: list[tuple[int, int]], own: int, most: int) -> None:
    tree = chain(list(range(own)), drawn=True)
    for parent, token in pairs:
        tree.add(min(parent, len(tree)), 10 + token)
    chances = gains(tree, TreeCalibration().of(tree))
    stay = likeliest(chances, own, most)
    left = pruned(tree, stay)
    assert len(left) == len(stay) == max(own, min(most, len(tree)))
    assert {tuple(path_of(left, node)) for node in range(1, len(left) + 1)} == {tuple(path_of(tree, n)) for n in stay}
    assert left.drawn == own and left.tokens[:own] == tree.tokens[:own]
    gone = [chances[n - 1] for n in range(1, len(tree) + 1) if n not in stay]
    assert not gone or max(gone) <= min((chances[n - 1] for n in stay if n > own), default=1.0)


def path_of(tree: Tree, node: int) -> list[int]:
    return [] if node == 0 else [*path_of(tree, tree.parents[node - 1]), tree.tokens[node - 1]]


def tree_of(*pairs: tuple[int, int]) -> Tree:
    tree = Tree()
    for parent, token in pairs:
        tree.add(parent, token)
    return tree


def weighed(*nodes: tuple[int, int, float]) -> SimpleNamespace:
    """(token, parent, chance)"""
    columns = zip(*nodes, strict=True)
    return SimpleNamespace(**dict(zip(("tokens", "parents", "chances"), columns, strict=True)))


def test_without_estimates_depth_and_rank_are_counted_under_what_was_taken() -> None:
    """Root → 1 (rank 0), 2 (rank 1); under 2: 3, 4. The target takes 2, 4: of what is under 1 nothing is learned."""
    tree, chances = tree_of((0, 1), (0, 2), (1, 9), (2, 3), (2, 4)), TreeCalibration()
    for _ in range(12):
        judge_nodes(tree, chances.of(tree), [2, 4, 7])
    first, second = chances.unknown[0], chances.unknown[1]
    assert [(cell.tries, cell.kept) for cell in first[:3]] == [(12, 0), (12, 12), (0, 0)]
    assert [(cell.tries, cell.kept) for cell in second[:2]] == [(12, 0), (12, 12)]
    found = gains(tree, chances.of(tree))
    assert found[1] == pytest.approx((12 + TRUST * 0.4 / 2**1.5) / (12 + TRUST))
    assert found[4] == pytest.approx(found[1] * (12 + TRUST * 0.4 / 2**1.5) / (12 + TRUST))


def test_what_a_source_says_holds_until_more_was_seen() -> None:
    """One token is named as sure and never right, its sibling as unsure and always right."""
    tree, chances = graft(Tree(), weighed((5, -1, 0.99), (6, -1, 0.1)), 4, 9, 10), TreeCalibration()
    assert gains(tree, chances.of(tree)) == pytest.approx([0.99, 0.1])
    for _ in range(200):
        judge_nodes(tree, chances.of(tree), [6])
    never, always = gains(tree, chances.of(tree))
    assert never < 0.03 and always > 0.97
    other = graft(Tree(), weighed((5, -1, 0.4)), 4, 9, 10)
    assert gains(other, chances.of(other)) == pytest.approx([0.4])  # nothing was seen of any as unsure as that


def test_what_was_left_out_is_judged_by_the_token_that_came_after_all() -> None:
    """Tokens end at the target's own: below it nothing was looked at."""
    tree, chances = tree_of((0, 1), (1, 2), (0, 3)), TreeCalibration()
    judge_nodes(tree, chances.of(tree), [1])
    assert [cell.tries for cell in chances.unknown[0][:2]] == [1, 1] and chances.unknown[1][0].tries == 0


@pytest.mark.parametrize("chances", [[0.5], [0.5, 0.5, 0.5]])
def test_a_chance_for_every_token(chances: list[float]) -> None:
    given = SimpleNamespace(tokens=[1, 2], parents=[-1, 0], chances=chances)
    with pytest.raises(BadProposal, match="2 tokens with"):
        graft(Tree(), given, 4, 9, 10)
