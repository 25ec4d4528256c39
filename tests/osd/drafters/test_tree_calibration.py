"""What is thought of a node, by hand, and what is learned of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from osd.draft import Tree, chain, graft
from osd.drafters.tree_calibration import MODEST, TRUST, TreeCalibration, gains, saw
from storage.errors import BadProposal


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
        saw(tree, chances.of(tree, 0), [2, 4, 7])
    first, second = chances.branches[0], chances.branches[1]
    assert [(cell.tries, cell.kept) for cell in first[:3]] == [(12, 0), (12, 12), (0, 0)]
    assert [(cell.tries, cell.kept) for cell in second[:2]] == [(12, 0), (12, 12)]
    found = gains(tree, chances.of(tree, 0))
    assert found[1] == pytest.approx((12 + TRUST * 0.4 / 2**1.5) / (12 + TRUST))
    assert found[4] == pytest.approx(found[1] * (12 + TRUST * 0.4 / 2**1.5) / (12 + TRUST))


def test_what_a_source_says_holds_until_more_was_seen() -> None:
    """A draft that is sure and never right, and a proposer that is unsure and always right."""
    tree, chances = graft(chain([5], drawn=False, peaks=[0.99]), weighed((6, -1, 0.1)), 4, 9, 10), TreeCalibration()
    assert gains(tree, chances.of(tree, 1)) == pytest.approx([MODEST * 0.99, 0.1])
    for _ in range(200):
        saw(tree, chances.of(tree, 1), [6])
    never, always = gains(tree, chances.of(tree, 1))
    assert never < 0.03 and always > 0.97 and chances.of_peak(0.99) < 0.02
    assert chances.of_peak(0.3) == pytest.approx(MODEST * 0.3)  # nothing was seen of drafts as unsure as that


def test_a_token_that_two_name_is_thought_likelier_than_by_either() -> None:
    tree = graft(chain([5], drawn=False, peaks=[0.5]), weighed((5, -1, 0.7), (6, -1, 0.2)), 4, 9, 10)
    chances = TreeCalibration()
    both, other = chances.of(tree, 1)
    assert both.chance == pytest.approx(0.7) and both.cells[0] is chances.chain[4]
    assert other.cells[0] is chances.named[1][6]  # not the first of its siblings
    for _ in range(50):
        saw(tree, chances.of(tree, 1), [5])
    alone = chances.of(chain([5], drawn=False, peaks=[0.5]), 1)[0]
    assert chances.of(tree, 1)[0].chance > 0.95 > alone.chance > 0.9  # a chain alone hears of it through all chains


def test_what_was_left_out_is_judged_by_the_token_that_came_after_all() -> None:
    """Tokens end at the target's own: below it nothing was looked at."""
    tree, chances = tree_of((0, 1), (1, 2), (0, 3)), TreeCalibration()
    saw(tree, chances.of(tree, 0), [1])
    assert [cell.tries for cell in chances.branches[0][:2]] == [1, 1] and chances.branches[1][0].tries == 0


@pytest.mark.parametrize("chances", [[0.5], [0.5, 0.5, 0.5]])
def test_a_chance_for_every_token(chances: list[float]) -> None:
    given = SimpleNamespace(tokens=[1, 2], parents=[-1, 0], chances=chances)
    with pytest.raises(BadProposal, match="2 tokens with"):
        graft(Tree(), given, 4, 9, 10)
