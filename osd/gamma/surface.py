"""A cost that is learned point by point: medians where it was timed, a line elsewhere."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable

WINDOW = 31
"""Timings that a cell remembers."""
TRUSTED = 4
"""Timings after which a cell is known well enough to compare with."""
_SMOOTHING = 4
"""Timings that the line weighs beside a cell's own: a cell of few is pulled towards its neighbours."""
_REFIT = 16
"""Timings after which the line is drawn anew."""


def lower_median(values: deque[float]) -> float:
    """The middle value, the lower of two: a stray timing is nearly always a slow one."""
    return sorted(values)[(len(values) - 1) // 2]


class Cell:
    """Recent timings of one (batch, tokens)."""

    __slots__ = ("count", "recent", "seen_at", "typical")

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.typical = 0.0
        self.count = 0
        self.seen_at = 0

    def add(self, value: float, at: int) -> None:
        """A timing taken in round ``at``."""
        self.recent.append(value)
        self.typical = lower_median(self.recent)
        self.count += 1
        self.seen_at = at


class Surface:
    """A cost over (batch, tokens): cells where it was measured, a line over ``size(batch, tokens)`` elsewhere."""

    def __init__(self, size: Callable[[int, int], int]) -> None:
        self._size = size
        self._rows: dict[int, dict[int, Cell]] = {}
        self._line: tuple[float, float] | None = None
        self._ratios: dict[int, tuple[list[int], list[float]]] = {}
        self._added = 0

    def cell(self, batch: int, tokens: int) -> Cell | None:
        """The cell, or None where nothing was measured."""
        return self._rows.get(batch, {}).get(tokens)

    def row(self, batch: int) -> list[tuple[int, float, int]]:
        """(tokens, cost, timings) of each cell of a batch size."""
        return [(tokens, cell.typical, cell.count) for tokens, cell in self._rows.get(batch, {}).items()]

    def add(self, batch: int, tokens: int, value: float, at: int) -> None:
        """A measured value."""
        row = self._rows.setdefault(batch, {})
        cell = row.get(tokens)
        if cell is None:
            cell = row[tokens] = Cell()
        cell.add(value, at)
        self._added += 1
        self._ratios.pop(batch, None)
        if cell.count <= TRUSTED or self._added % _REFIT == 0:
            self._line = None

    def estimate(self, batch: int, tokens: int) -> float | None:
        """The cost, or None while nothing at all was measured.

        The line's value times the measured ÷ line ratio of the batch's own cells, which is interpolated
        between the two nearest and carried on beyond the outermost.
        """
        if not self._rows:
            return None
        value = self._on_line(batch, tokens)
        if batch not in self._rows:
            return value
        known, ratios = self._ratios.get(batch) or self._ratios_of(batch)
        above = bisect_left(known, tokens)
        if above == len(known):
            return value * ratios[-1]
        if above == 0 or known[above] == tokens:
            return value * ratios[above]
        part = (tokens - known[above - 1]) / (known[above] - known[above - 1])
        return value * (ratios[above - 1] + part * (ratios[above] - ratios[above - 1]))

    def _ratios_of(self, batch: int) -> tuple[list[int], list[float]]:
        row = self._rows[batch]
        known = sorted(row)
        ratios = []
        for tokens in known:
            trust = row[tokens].count / (row[tokens].count + _SMOOTHING)
            ratios.append(1 + trust * (row[tokens].typical / self._on_line(batch, tokens) - 1))
        self._ratios[batch] = known, ratios
        return known, ratios

    def _on_line(self, batch: int, tokens: int) -> float:
        if self._line is None:
            self._line = self._fit()
            self._ratios.clear()
        start, slope = self._line
        return start + slope * self._size(batch, tokens)

    def _fit(self) -> tuple[float, float]:
        """Least squares, each cell weighted by how far it is trusted; neither start nor slope is negative."""
        total = x_sum = y_sum = xx = xy = 0.0
        for batch, row in self._rows.items():
            for tokens, cell in row.items():
                weight, x, y = min(cell.count, TRUSTED), self._size(batch, tokens), cell.typical
                total, x_sum, y_sum = total + weight, x_sum + weight * x, y_sum + weight * y
                xx, xy = xx + weight * x * x, xy + weight * x * y
        spread = total * xx - x_sum * x_sum
        slope = (total * xy - x_sum * y_sum) / spread if spread > 1e-9 * total * xx else 0.0
        start = (y_sum - slope * x_sum) / total
        if slope < 0:
            return y_sum / total, 0.0
        return (start, slope) if start >= 0 else (0.0, xy / xx)
