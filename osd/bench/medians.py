"""How far a median may be off."""

from __future__ import annotations

import math
from collections.abc import Sequence


def median_error(values: Sequence[float]) -> float:
    """Standard error of the median, by what lies √n/2 places beside it: a few wild turns do not move it."""
    ordered, n = sorted(values), len(values)
    low, high = math.floor((n - math.sqrt(n)) / 2), math.ceil((n + math.sqrt(n)) / 2) - 1
    return (ordered[min(n - 1, high)] - ordered[max(0, low)]) / 2
