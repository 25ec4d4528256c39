"""Is a version worse than what the others serve: the arithmetic, and how often it is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from osd.hotswap.canary import compare
from storage.insights.recent import ServedPart


def side(rng: np.random.Generator, count: int, mean: float, route: str = "default") -> list[ServedPart]:
    """Requests of 20 to 120 judged tokens whose acceptance spreads by 0.15 around a mean."""
    size = mean * (1 - mean) / 0.15**2 - 1
    judged = rng.integers(20, 120, count)
    accepted = rng.binomial(judged, rng.beta(mean * size, (1 - mean) * size, count))
    pairs = zip(accepted.tolist(), judged.tolist(), strict=True)
    return [ServedPart(route, 1, one, all_ - one, all_, all_ // 2) for one, all_ in pairs]


def test_equal_versions_are_seldom_found_worse_and_bad_ones_mostly() -> None:
    """400 looks at 1 %: more than 14 false alarms once in 10,000. A fall by 0.15 is found by 64 requests, and at 0.6
    the chance to miss it is below 1 in 100."""
    rng = np.random.default_rng(0)
    alarms = sum(compare(side(rng, 64, 0.6), side(rng, 64, 0.6), 0.99).worse for _ in range(400))  # type: ignore[union-attr]
    found = sum(compare(side(rng, 64, 0.45), side(rng, 64, 0.6), 0.99).worse for _ in range(100))  # type: ignore[union-attr]
    assert alarms <= 14 and found >= 95


def test_who_gets_more_of_a_hard_route_is_not_blamed() -> None:
    rng = np.random.default_rng(1)
    tried = [*side(rng, 20, 0.8, "easy"), *side(rng, 180, 0.3, "hard")]
    others = [*side(rng, 180, 0.8, "easy"), *side(rng, 20, 0.3, "hard")]
    found = compare(tried, others, 0.99)
    assert found and not found.worse and abs(found.after - found.before) < 0.05
    for pooled in (tried, others):
        pooled[:] = [ServedPart("one", 1, s.accepted, s.rejections, s.emitted, s.rounds) for s in pooled]
    assert compare(tried, others, 0.99).worse  # type: ignore[union-attr]


def test_a_version_that_a_controller_gave_up_on_is_judged_by_tokens_a_round() -> None:
    rng = np.random.default_rng(2)
    tried = [ServedPart("default", 1, 0, 0, 50, 50 - i % 2) for i in range(30)]
    found = compare(tried, side(rng, 30, 0.6), 0.99)
    assert found and found.measure == "tokens a round" and found.worse


@pytest.mark.parametrize("counts", [(0, 0), (0, 9), (9, 0), (1, 9), (9, 1)])
def test_too_few_requests_say_nothing(counts: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    tried, others = (side(rng, count, 0.5) for count in counts)
    assert compare(tried, others, 0.99) is None
    assert compare(tried, [ServedPart("other", 1, 5, 5, 9, 9)] * 9, 0.99) is None, "no route in common"


def test_two_that_never_differ_are_equal() -> None:
    same = [ServedPart("default", 1, 9, 0, 10, 1)] * 9
    found = compare(same, same, 0.99)
    assert found and found.high == 0 and not found.worse
