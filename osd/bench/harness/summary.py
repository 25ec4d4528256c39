"""Figures of arms that took turns: medians, ratios within turns, standard errors.

A machine changes its speed from minute to minute by more than arms differ. Arms of one turn stand next to each other in
time, so their ratio in the median of the turns is told, not the ratio of their totals.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Ratio(NamedTuple):
    """One arm ÷ another, in the median of their turns; None where there is no turn to compare."""

    value: float | None
    error: float | None
    """Standard error of the median."""


def ratio_of_turns(one: Sequence[float], *others: Sequence[float]) -> Ratio:
    """Compare an arm's rates with the best of the others' in the same turn; turns that one lacks are left out."""
    turns = zip(one, *others, strict=False)
    values = [own / max(rest) for own, *rest in turns if max(rest) > 0]
    return Ratio(statistics.median(values), median_error(values)) if values else Ratio(None, None)


def median_error(values: Sequence[float]) -> float:
    """Return the standard error of the median, by what lies √n/2 places beside it: a few wild turns do not move it."""
    ordered, n = sorted(values), len(values)
    low, high = math.floor((n - math.sqrt(n)) / 2), math.ceil((n + math.sqrt(n)) / 2) - 1
    return (ordered[min(n - 1, high)] - ordered[max(0, low)]) / 2


def mean_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; infinite for fewer than two values."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
