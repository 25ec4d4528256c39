"""What harvesting takes of a step, told by steps of which more and fewer rows are harvested."""

from __future__ import annotations

import random

import pytest

from osd.attached.vllm.plugin.osd_vllm.harvest_cost import HarvestCost


def told(cost: float, shares: tuple[float, ...], steps: int = 2000) -> float | None:
    """What is told of steps of two sizes whose time grows by ``cost`` where all rows are harvested."""
    found, chance = HarvestCost(), random.Random(7)
    for _ in range(steps):
        rows, share = chance.choice((2, 8)), chance.choice(shares)
        seconds = 0.01 * rows * (1 + cost * share) * chance.lognormvariate(0, 0.05)
        found.note((rows, 0, False), share, seconds)
    return found.share()


@pytest.mark.parametrize("cost", [0.0, 0.1, 0.5])
def test_the_cost_of_steps_is_told_whatever_their_sizes(cost: float) -> None:
    """Four standard errors of a slope over 2,000 steps of 5 % noise are 0.02: a false alarm in ten thousand."""
    at_half = cost * 0.5 / (1 + cost * 0.5)
    assert told(cost, (0.0, 0.5, 1.0)) == pytest.approx(at_half, abs=0.02)


def test_nothing_is_told_without_a_comparison_and_nothing_harvested_costs_nothing() -> None:
    assert HarvestCost().share() is None
    assert told(0.5, (1.0,)) is None, "all is harvested: there is nothing to compare with"
    assert told(0.5, (0.0,)) == 0.0
