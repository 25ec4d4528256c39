"""A cost that is learned point by point: medians where it was timed, a plane elsewhere."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

WINDOW = 31
"""Most timings that a cell keeps."""
TRUSTED = 8
"""Timings after which a cell is known well enough to compare with. With fewer the least counts: the first passes of a
shape, and an engine's first rounds, may take several times what they usually do."""
_SMOOTHING = 4
"""Weight of the plane beside a cell's own timings: a cell with few is pulled towards its neighbours."""
_REFIT = 16
"""Timings after which the plane is fitted anew."""
_HALF_LIFE = 512
"""Rounds in which a cell that is not timed any more loses half of its weight."""
_LONG_AGO = 1024
"""Rounds after which a cell that is timed again begins anew: its old timings no longer hold."""
_APART = 0.05
"""Least 1 − r² of rows and sizes at which their effects are told apart; else all is put down to size, which speculates
less."""

Point = tuple[float, int, int, float]
"""A measured cost: weight, rows, size, cost."""


def lower_median(values: deque[float]) -> float:
    """Return the middle value, the lower of two: a stray timing is nearly always a slow one."""
    return sorted(values)[(len(values) - 1) // 2]


class TimingCell:
    """Recent timings of one (batch, tokens)."""

    __slots__ = ("count", "recent", "seen_at", "typical")

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.typical = 0.0
        self.count = 0
        self.seen_at = 0

    def add(self, value: float, at: int) -> None:
        """Add a timing taken in round ``at``, dropping those from long before."""
        if at - self.seen_at > _LONG_AGO:
            self.recent.clear()
            self.count = 0
        self.recent.append(value)
        self.count += 1
        self.typical = lower_median(self.recent) if self.count >= TRUSTED else min(self.recent)
        self.seen_at = at

    def timings(self, now: int) -> float:
        """Return its number of timings, discounted by how long ago the last was."""
        return self.count * float(0.5 ** ((now - self.seen_at) / _HALF_LIFE))


class Surface:
    """A cost over (batch, tokens): cells where it was measured, a plane over the rows and ``size(batch, tokens)``
    elsewhere, which all batch sizes share."""

    def __init__(self, size: Callable[[int, int], int], by_rows: bool = False) -> None:
        """Start empty. ``by_rows``: whether a row costs something beside its size."""
        self._size, self._by_rows = size, by_rows
        self._rows: dict[int, dict[int, TimingCell]] = {}
        self._plane: tuple[float, float, float] | None = None
        self._ratios: dict[int, tuple[list[int], list[float]]] = {}
        self._added = self._now = 0

    def cell(self, batch: int, tokens: int) -> TimingCell | None:
        """Return the cell, or None where nothing was measured."""
        return self._rows.get(batch, {}).get(tokens)

    def row(self, batch: int) -> list[tuple[int, float, float]]:
        """Return (tokens, cost, weight) of each cell of a batch size."""
        return [(tokens, cell.typical, self._weight(cell)) for tokens, cell in self._rows.get(batch, {}).items()]

    def add(self, batch: int, tokens: int, value: float, at: int) -> None:
        """Add a measured value."""
        row = self._rows.setdefault(batch, {})
        cell = row.get(tokens)
        if cell is None:
            cell = row[tokens] = TimingCell()
        cell.add(value, at)
        self._now = max(self._now, at)
        self._added += 1
        self._ratios.pop(batch, None)
        if cell.count <= TRUSTED or self._added % _REFIT == 0:
            self._plane = None

    def estimate(self, batch: int, tokens: int) -> float | None:
        """Return the cost, or None while nothing at all was measured.

        The plane's value times the measured ÷ plane ratio of the batch's own cells, which is interpolated
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
            timings = row[tokens].timings(self._now)
            trust = timings / (timings + _SMOOTHING)
            ratios.append(1 + trust * (row[tokens].typical / self._on_line(batch, tokens) - 1))
        self._ratios[batch] = known, ratios
        return known, ratios

    def _on_line(self, batch: int, tokens: int) -> float:
        if self._plane is None:
            self._plane = plane_through(self._points())
            self._ratios.clear()
        start, a_row, a_size = self._plane
        return start + a_row * batch + a_size * self._size(batch, tokens)

    def _points(self) -> list[Point]:
        return [
            (self._weight(cell), batch if self._by_rows else 0, self._size(batch, tokens), cell.typical)
            for batch, row in self._rows.items()
            for tokens, cell in row.items()
        ]

    def _weight(self, cell: TimingCell) -> float:
        """Return a cell's weight, less the longer ago it was timed: what few timings got wrong is forgotten even where
        they alone make the cell look not worth timing."""
        return cell.timings(self._now) * min(1.0, TRUSTED / cell.count)


def plane_through(points: Sequence[Point]) -> tuple[float, float, float]:
    """Fit start + a_row · rows + a_size · size by weighted least squares; return (start, a_row, a_size).

    None of them is negative: where one would be, or rows and sizes rise together, rows play no part, and then size.
    """
    total = sum(weight for weight, _, _, _ in points)
    rows, size, cost = (sum(point[0] * point[k] for point in points) / total for k in (1, 2, 3))
    centred = [(weight, b - rows, x - size, y - cost) for weight, b, x, y in points]
    bb, xx, bx, by, xy = (
        sum(point[0] * point[k] * point[j] for point in centred) for k, j in ((1, 1), (2, 2), (1, 2), (1, 3), (2, 3))
    )
    determinant = bb * xx - bx * bx
    if determinant > _APART * bb * xx:
        a_row, a_size = (by * xx - xy * bx) / determinant, (xy * bb - by * bx) / determinant
        start = cost - a_row * rows - a_size * size
        if min(start, a_row, a_size) >= 0:
            return start, a_row, a_size
    slope = xy / xx if xx > 1e-9 * total * (xx / total + size * size) else 0.0
    if slope < 0:
        return cost, 0.0, 0.0
    if (start := cost - slope * size) >= 0:
        return start, 0.0, slope
    return 0.0, 0.0, sum(w * x * y for w, _, x, y in points) / sum(w * x * x for w, _, x, _ in points)
