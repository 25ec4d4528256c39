"""What drafting and verifying cost here and now: a(B) and b(B, N), learned while serving.

B rows share a pass, and N tokens are in it, of all rows together. Nothing is profiled beforehand. Each cell
(batch, tokens) keeps the median of its last few timings; a line through the cells fills in those never timed.
Both forget, and a stray timing moves neither.
"""

from __future__ import annotations

import math
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
_LATE_ENOUGH = 3
"""Drafts that began late, with none that did not, after which they are taken for what drafting costs here."""
_LOAD_WINDOW = 9
_LOAD_ANCHOR = 0.98


def lower_median(values: deque[float]) -> float:
    """The middle value, the lower of two: a stray timing is nearly always a slow one."""
    return sorted(values)[(len(values) - 1) // 2]


def _rounded(tokens: int) -> int:
    """Passes of nearly as many tokens share a cell: eight cells between one power of two and the next."""
    step = 1 << max(0, tokens.bit_length() - 4)
    return (tokens + step // 2) // step * step


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


class Load:
    """How much slower than usual the machine is just now, as a factor on every cost.

    A trainer that shares the processor slows all cells at once, and only some are being timed. The factor
    leans back to 1 over some hundred rounds, so that a lasting change ends up in the cells themselves.
    """

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=_LOAD_WINDOW)
        self.factor = 1.0

    def observe(self, ratio: float) -> None:
        """A timing ÷ what its cell holds."""
        self._ratios.append(ratio)
        self.factor = lower_median(self._ratios) ** _LOAD_ANCHOR


class CostModel:
    """Milliseconds of drafting and verifying. One an engine, shared by all rows, fed by every step."""

    def __init__(self) -> None:
        self.rounds = 0
        """Target passes seen."""
        self.spent_ms = 0.0
        """All drafting and verifying seen, milliseconds."""
        self.plain_rounds = 0
        """Of the rounds, those without drafted tokens."""
        self.late = False
        """Whether the next draft begins with text that the drafter has not read: its timing is then no draft step's."""
        self._load = Load()
        self._draft = Surface(lambda batch, steps: batch)  # a cell holds milliseconds a step
        self._late_draft = Surface(lambda batch, steps: batch)
        self._late_drafts = 0
        self._extras: deque[float] = deque([0.0], maxlen=WINDOW)
        self._verify = Surface(lambda batch, tokens: tokens)

    def observe_draft(self, batch: int, steps: int, ms: float) -> None:
        """``steps`` draft passes over ``batch`` rows took ``ms``. A timing that is not above 0 is ignored."""
        if steps < 1 or batch < 1 or not 0 < ms < math.inf:
            return
        if self.late:
            self._observe_late(batch, steps, ms)
        else:
            self._observe(self._draft, batch, steps, ms, steps)

    def _observe_late(self, batch: int, steps: int, ms: float) -> None:
        self.spent_ms += ms
        self._late_drafts += 1
        self._late_draft.add(batch, steps, ms / steps / self.load, self.rounds)
        usual = self._draft.estimate(batch, steps)
        if usual is not None:
            self._extras.append(max(0.0, ms / self.load - steps * usual))

    def observe_verify(self, batch: int, tokens: int, ms: float) -> None:
        """One target pass of ``tokens`` tokens (γ + 1 a row) over ``batch`` rows took ``ms``, accepting included."""
        self.rounds += 1
        self.plain_rounds += tokens == batch
        self._observe(self._verify, batch, _rounded(tokens), ms, 1)

    def _observe(self, surface: Surface, batch: int, tokens: int, ms: float, passes: int) -> None:
        if batch < 1 or tokens < 1 or not 0 < ms < math.inf:
            return
        self.spent_ms += ms
        cell = surface.cell(batch, tokens)
        if cell is not None and cell.count >= TRUSTED:
            self._load.observe(ms / passes / cell.typical)
        surface.add(batch, tokens, ms / passes / self._load.factor, self.rounds)

    @property
    def catch_up_ms(self) -> float:
        """Milliseconds by which a draft that begins late is usually longer; 0 while none was timed."""
        return lower_median(self._extras) * self.load

    @property
    def load(self) -> float:
        """How much slower than usual everything is just now; 1 is as usual."""
        return self._load.factor

    def draft_ms(self, batch: int, steps: int) -> float | None:
        """Milliseconds of ``steps`` draft passes over ``batch`` rows; None while no draft was timed."""
        step = self._draft.estimate(batch, steps)
        if step is None and self._late_drafts >= _LATE_ENOUGH:
            step = self._late_draft.estimate(batch, steps)
        return None if step is None else step * steps * self.load

    def draft_step_ms(self, batch: int) -> float | None:
        """a(B): milliseconds of one draft pass over ``batch`` rows; None while no draft was timed."""
        return self.draft_ms(batch, 1)

    def verify_ms(self, batch: int, tokens: int) -> float | None:
        """b(B, N): milliseconds of one target pass of N tokens in all; None while no pass was timed."""
        value = self._verify.estimate(batch, tokens)
        return None if value is None else value * self.load

    def round_ms(self, batch: int, gamma: int) -> float | None:
        """The denominator of Eq. 1 for B rows of γ drafted tokens, γ·a(B) + b(B, B (γ + 1)), in milliseconds; None
        while too little is known."""
        verify = self.verify_ms(batch, batch * (gamma + 1))
        draft = self.draft_ms(batch, gamma) if gamma else 0.0
        return None if verify is None or draft is None else draft + verify

    def verified(self, batch: int, tokens: int) -> tuple[int, int]:
        """How often a pass of this shape was timed, and in which round last (0, 0 for never)."""
        cell = self._verify.cell(batch, _rounded(tokens))
        return (cell.count, cell.seen_at) if cell else (0, 0)
