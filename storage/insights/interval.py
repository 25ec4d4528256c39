"""How sure a difference of two acceptance rates is, from sums in buckets of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

Bucket = tuple[int, int]
"""Accepted, and judged (accepted and rejections)."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A ratio of two sums and the variance of that ratio."""

    value: float | None
    variance: float | None
    """None with fewer than two buckets."""
    freedom: int
    """Degrees of freedom: buckets less one."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a difference lies, with some confidence."""

    low: float
    high: float


def rate(buckets: Sequence[Bucket]) -> Rate:
    """Σ accepted ÷ Σ judged; its variance is that of a ratio of means, linearised (Cochran, Sampling Techniques, 6.3).

    Tokens of one bucket depend on each other; buckets are taken as independent, which is what the interval rests on.
    """
    judged = [bucket for bucket in buckets if bucket[1]]
    total, n = sum(below for _, below in judged), len(judged)
    if not total:
        return Rate(None, None, 0)
    value = sum(above for above, _ in judged) / total
    if n < 2:
        return Rate(value, None, 0)
    squares = sum((above - value * below) ** 2 for above, below in judged)
    return Rate(value, n / (n - 1) * squares / total**2, n - 1)


def difference(before: Rate, after: Rate, confidence: float) -> Interval | None:
    """Welch's two-sided interval of after − before; None where a side says nothing of its spread."""
    if before.value is None or after.value is None or before.variance is None or after.variance is None:
        return None
    gain, variance = after.value - before.value, before.variance + after.variance
    if not variance:
        return Interval(gain, gain)
    freedom = variance**2 / sum(side.variance**2 / side.freedom for side in (before, after) if side.variance)
    width = student(0.5 + confidence / 2, freedom) * math.sqrt(variance)
    return Interval(gain - width, gain + width)


def student(probability: float, freedom: float) -> float:
    """The quantile of Student's t, p ≥ 1/2: its expansion around the normal one (Abramowitz and Stegun 26.7.5); exact
    at 1 and 2 degrees, where that is off. Within 2 % from 3 degrees on for p ≤ 0.995: storage has no SciPy."""
    if freedom < 1.5:
        return math.tan(math.pi * (probability - 0.5))
    if freedom < 2.5:
        return (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
    z, v = NormalDist().inv_cdf(probability), freedom
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v**power for power, term in enumerate(terms, start=1))
