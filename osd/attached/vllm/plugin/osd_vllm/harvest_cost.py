"""What harvesting takes of a step's time: steps of one kind are compared, of which more and fewer rows are harvested.

With x the share of a step's rows whose likeliest tokens are asked for and y its seconds ÷ the mean of its kind (rows,
draft length), the cost is the slope of least squares of y on x within kinds, times the mean of x.

Standard library only: it runs in vLLM's engine process.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

FADE = 0.9995
"""What a step's weight is multiplied by with each later step of its kind."""
ENOUGH = 8.0
"""Σ (x − mean)² from which a slope is told."""


class HarvestCost:
    """Sums over steps, by kind: weights, x, y, x², x y. Used by one thread."""

    def __init__(self) -> None:
        self._sums: dict[Any, list[float]] = defaultdict(lambda: [0.0] * 5)

    def note(self, kind: Any, share: float, seconds: float) -> None:
        """Note a step of which a ``share`` of the rows was harvested."""
        new = (1.0, share, seconds, share * share, share * seconds)
        self._sums[kind] = [FADE * old + more for old, more in zip(self._sums[kind], new, strict=True)]

    def share(self) -> float | None:
        """Return the share of the time of steps that harvesting takes: at least 0, and None while that is not known."""
        apart = together = weights = harvested = 0.0
        for n, x, y, xx, xy in self._sums.values():
            apart += xx - x * x / n
            together += (xy - x * y / n) / (y / n) if y else 0.0
            weights, harvested = weights + n, harvested + x
        if not harvested:
            return 0.0 if weights else None
        return max(0.0, together / apart * harvested / weights) if apart > ENOUGH else None
