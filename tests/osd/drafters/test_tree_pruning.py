"""What a node is expected to bring, by hand, and how many nodes a tree has for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osd.draft import Tree, chain
from osd.drafters.tree_calibration import TreeCalibration, gains, likeliest
from osd.drafters.tree_pruning import bar_of, pruned, steps


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
    found = steps(most)
    assert found == sorted(set(found)) and found[0] == 0 and found[-1] == most and len(found) < 20


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=30), st.integers(0, 4), st.integers(0, 20))
def test_the_likeliest_are_connected_and_keep_what_was_drawn(pairs: list[tuple[int, int]], own: int, most: int) -> None:
    tree = chain(list(range(own)), drawn=True)
    for parent, token in pairs:
        tree.add(min(parent, len(tree)), 10 + token)
    chances = gains(tree, TreeCalibration().of(tree, own))
    stay = likeliest(chances, own, most)
    left = pruned(tree, stay)
    assert len(left) == len(stay) == max(own, min(most, len(tree)))
    assert {tuple(path_of(left, node)) for node in range(1, len(left) + 1)} == {tuple(path_of(tree, n)) for n in stay}
    assert left.drawn == own and left.tokens[:own] == tree.tokens[:own]
    gone = [chances[n - 1] for n in range(1, len(tree) + 1) if n not in stay]
    assert not gone or max(gone) <= min((chances[n - 1] for n in stay if n > own), default=1.0)


def path_of(tree: Tree, node: int) -> list[int]:
    return [] if node == 0 else [*path_of(tree, tree.parents[node - 1]), tree.tokens[node - 1]]
