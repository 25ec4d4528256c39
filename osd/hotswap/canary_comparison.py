"""Is a version that one worker tries worse than what the others serve at the same time?

Requests are the unit of chance: tokens of one request depend on each other. Within each route the two ratios of sums
(accepted ÷ judged) are compared, their variances linearised (Cochran, Sampling Techniques, 6.3). The differences of
the routes are weighted by what the tried version judged there, so that a worker that happens to get more of a hard
route is not blamed for it. Requests within a route stay unpaired: who gets which hangs on the connection they came by.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage.insights.recent import ServedPart
from storage.insights.statistics import Bucket, Rate, rate, student

Measure = Callable[[ServedPart], Bucket]
MEASURES: dict[str, Measure] = {
    "acceptance": lambda one: (one.accepted, one.judged),
    "tokens a round": lambda one: (one.emitted, one.rounds),
}


@dataclass(frozen=True, slots=True)
class CanaryFinding:
    """What a look found."""

    measure: str
    requests: int
    """Outcomes of the tried version."""
    others: int
    before: float
    """What the others' version has, with the tried one's shares of the routes."""
    after: float
    high: float
    """Upper end of the difference's one-sided interval."""
    confidence: float

    @property
    def worse(self) -> bool:
        """Whether the tried version is worse, with that confidence."""
        return self.high < 0


def compare(tried: Sequence[ServedPart], others: Sequence[ServedPart], confidence: float) -> CanaryFinding | None:
    """Return what the comparison of the tried version with the others' finds; None where there is too little of either
    to say anything."""
    name = "tokens a round" if _has_stopped(tried, others) else "acceptance"
    left, right = _by_route(tried, MEASURES[name]), _by_route(others, MEASURES[name])
    pairs = [(rate(left[route]), rate(right[route]), _weight(left[route])) for route in left.keys() & right.keys()]
    known = [(t, o, weight) for t, o, weight in pairs if t.variance is not None and o.variance is not None]
    if not (total := sum(weight for *_, weight in known)):
        return None
    after = sum(weight / total * (t.value or 0) for t, _, weight in known)
    before = sum(weight / total * (o.value or 0) for _, o, weight in known)
    width = _width([(side, weight / total) for t, o, weight in known for side in (t, o)], confidence)
    counts = [sum(one.requests for one in side) for side in (tried, others)]
    return CanaryFinding(name, counts[0], counts[1], before, after, after - before + width, confidence)


def _has_stopped(tried: Sequence[ServedPart], others: Sequence[ServedPart]) -> bool:
    """Return whether the tried version is hardly drafted with where the others' is: a controller has given up on it,
    and what is judged of it says little. Then tokens a round tell."""
    shares = [sum(one.judged > 0 for one in side) / max(1, len(side)) for side in (tried, others)]
    return shares[0] < shares[1] / 2


def _by_route(side: Sequence[ServedPart], measure: Measure) -> dict[str, list[Bucket]]:
    routes: dict[str, list[Bucket]] = defaultdict(list)
    for one in side:
        routes[one.route].append(measure(one))
    return routes


def _weight(buckets: Sequence[Bucket]) -> int:
    return sum(below for _, below in buckets)


def _width(sides: Sequence[tuple[Rate, float]], confidence: float) -> float:
    """Student's t by Welch's and Satterthwaite's degrees of freedom, times the standard error."""
    parts = [(weight**2 * side.variance, side.freedom) for side, weight in sides if side.variance]
    if not parts:
        return 0.0
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / free for part, free in parts)
    return student(confidence, freedom) * math.sqrt(variance)
