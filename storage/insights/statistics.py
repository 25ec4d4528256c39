"""Statistics of acceptance: the interval of a difference between two rates, and the tokens of a round.

A round that drafts γ tokens, each accepted with chance α, brings L(α) = 1 + α + … + α^γ tokens (Leviathan et al.,
Equation 1) and takes as long whatever α is. γ may be a mean, and then need not be whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

Bucket = tuple[int, int]
"""(accepted, judged) tokens of one bucket, judged = accepted + rejections."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A ratio of two sums and the variance of that ratio."""

    value: float | None
    variance: float | None
    """The ratio's variance; None with fewer than two buckets."""
    freedom: int
    """Degrees of freedom: number of buckets − 1."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A difference and the two ends of its confidence interval."""

    low: float
    high: float


def rate(buckets: Sequence[Bucket]) -> Rate:
    """Return Σ accepted ÷ Σ judged, with the linearised variance of a ratio of means (Cochran, Sampling Techniques,
    6.3).

    Tokens within a bucket may be dependent; the interval assumes that buckets are independent.
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
    """Return Welch's two-sided interval of after − before; None where a side has no variance estimate."""
    if before.value is None or after.value is None or before.variance is None or after.variance is None:
        return None
    gain, variance = after.value - before.value, before.variance + after.variance
    if not variance:
        return Interval(gain, gain)
    freedom = variance**2 / sum(side.variance**2 / side.freedom for side in (before, after) if side.variance)
    width = student(0.5 + confidence / 2, freedom) * math.sqrt(variance)
    return Interval(gain - width, gain + width)


def student(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution for p ≥ 1/2 (storage does not depend on SciPy).

    Expands it around the normal quantile (Abramowitz and Stegun 26.7.5); exact at 1 and 2 degrees of freedom, where the
    expansion is poor. Within 2 % from 3 degrees on for p ≤ 0.995.
    """
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


def tokens_per_round(alpha: float, gamma: float) -> float:
    """Return L(α) = (1 − α^{γ+1}) ÷ (1 − α), the expected tokens of a round, the target's included."""
    if alpha >= 1:
        return gamma + 1
    if alpha <= 0:
        return 1.0
    return math.expm1((gamma + 1) * math.log(alpha)) / (alpha - 1)


def saved_share(alpha: float, gamma: float) -> float:
    """Return L′(α) ÷ L(α), the share of decoding time that a unit of acceptance saves at the margin."""
    if alpha >= 1:
        return gamma / 2
    length = tokens_per_round(alpha, gamma)
    return (length - (gamma + 1) * math.pow(alpha, gamma)) / (1 - alpha) / length
