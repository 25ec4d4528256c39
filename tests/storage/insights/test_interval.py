"""The interval of a difference of two rates, against SciPy and against chance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from storage.insights.statistics import Rate, difference, rate, student


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 20, 200])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.95, 0.975, 0.995])
def test_student_is_near_the_exact_quantile(probability: float, freedom: int) -> None:
    exact = stats.t.ppf(probability, freedom)
    assert student(probability, freedom) == pytest.approx(exact, rel=0.02 if freedom > 2 else 1e-9)


def test_a_rate_is_a_ratio_of_sums() -> None:
    found = rate([(3, 4), (0, 0), (5, 10)])
    assert (found.value, found.freedom) == (8 / 14, 1)
    assert found.variance == pytest.approx(2 / 1 * ((3 - 4 * 8 / 14) ** 2 + (5 - 10 * 8 / 14) ** 2) / 14**2)


def test_too_little_has_no_interval() -> None:
    assert rate([]) == Rate(None, None, 0)
    assert rate([(1, 2)]) == Rate(0.5, None, 0)
    assert difference(rate([(1, 2)]), rate([(1, 2), (2, 2)]), 0.95) is None


def test_it_holds_the_truth_as_often_as_it_says() -> None:
    """Rates that differ from bucket to bucket, of buckets of many sizes; nine intervals in ten hold the difference."""
    rng = np.random.default_rng(0)

    def side(mean: float) -> Rate:
        sizes = rng.integers(50, 400, 24)
        return rate([(int(rng.binomial(n, rng.beta(20 * mean, 20 * (1 - mean)))), int(n)) for n in sizes])

    hits = 0
    for _ in range(1000):
        span = difference(side(0.6), side(0.65), 0.9)
        assert span is not None
        hits += span.low <= 0.05 <= span.high
    assert 870 <= hits <= 930
