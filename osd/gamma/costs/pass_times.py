"""What a pass takes, by its shape: a Gaussian process over the shapes that were timed, and how wrong it may be.

A pass over (rows, size) with so many positions in its rows' caches takes, ÷ the mean of what was timed,

    w·φ + g(ln rows, ln size)        φ = (1, rows, size, context), each ÷ the largest timed;  w ~ N(0, diag LINE²)

where g departs from the plane by ``BEND`` (standard deviation) and is the same for shapes near one another: its
covariance is BEND² exp(−d² / 2), d being how many factors of e they are apart. A timing errs by ``noise`` of itself.
Mean and standard error of any further shape follow in closed form (Rasmussen and Williams, Gaussian Processes for
Machine Learning, Eqs. 2.25 and 2.26). Of a shape that was only probed it is believed how it compares with others, not
what it takes: all of them together are moved by what shapes took that were timed since. See docs/gamma.md.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from math import log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WINDOW = 31
"""Timings of a shape that are kept, the newest; a quarter of them took less than what counts, for whatever else the
machine does makes passes slower, never faster."""
SHAPES = 64
"""Shapes that are kept, those timed last."""
HALF_LIFE = 512
"""Rounds in which a shape that is not timed any more loses half of its weight."""
LINE = np.array([1.0, 1.0, 1.0, 0.1])
"""How much of a pass's time may be due to its beginning, rows, size and context, beforehand (standard deviations)."""
BEND = 0.1
"""How far it departs from a plane."""
GRID = 24
"""Sizes at which a curve is worked out, beside the first 16; straight between them."""
NOISE = 0.1
"""Standard error of a timing ÷ the timing, until shapes were timed again."""
LEAST_NOISE = 0.02
"""No timing is taken to err by less: shapes that are near one another could not be told apart."""
SURPRISES = 3
"""Timings one after another that all took less than their shapes did, by as many standard errors, after which what was
timed before counts as probes do."""
SLOWER = 8
"""The same of timings that took more: other processes interrupt several, one after another."""
FRESH = 256
"""Timings for which a curve is used before it is worked out anew; fewer while there are few."""
TRUSTED = 8
"""Timings of a shape after which another one's ratio to them says how loaded the machine is."""
FLOOR = 1e-3
"""Least time of a pass ÷ the mean of what was timed."""


def lower_median(values: Iterable[float]) -> float:
    """Return the middle value, the lower of two."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def lower_quartile(values: Iterable[float]) -> float:
    """Return the value that a quarter of all are below."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 4]


class Timings:
    """Timings of one shape."""

    __slots__ = ("at", "context", "error", "probed", "recent", "typical")

    def __init__(self, probed: float = 0.0, error: float = 0.0, at: int = 0) -> None:
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.typical = self.context = 0.0
        self.at = at
        self.probed, self.error = probed, error
        """What a probe took, 0 for none, and its standard error ÷ that."""

    def weight(self, now: int) -> float:
        """Return how many timings it counts as."""
        return max((len(self.recent) or 1) * float(0.5 ** ((now - self.at) / HALF_LIFE)), 1e-3)


class CostCurve(NamedTuple):
    """Passes over some rows, by size."""

    size: Floats
    ms: Floats
    error: Floats
    """Standard error of each one's difference from the first, milliseconds."""


class PassTimes:
    """Milliseconds of a pass. ``per_pass``: size counts passes that follow one another, and each takes so much less the
    more of them share what the first takes beforehand: φ has 1 / size."""

    def __init__(self, *, per_pass: bool = False) -> None:
        self._per_pass = per_pass
        self._shapes: OrderedDict[tuple[int, int], Timings] = OrderedDict()
        self._errors: deque[float] = deque([NOISE / 1.5] * 4, maxlen=WINDOW)
        self._added = 0
        self._surprises: list[float] = []
        """By how much the newest timings departed from what their shapes took, in logarithms."""
        self.changes = 0
        """How often what was timed before no longer held, or a shape was first timed that had been probed."""
        self._solved: tuple[tuple[Floats, Floats], Floats, Floats] | None = None
        self._solved_at = 0
        self._scale, self._mean = np.ones(3), 1.0
        self._curves: dict[tuple[int, int, int], tuple[int, CostCurve]] = {}

    def __bool__(self) -> bool:
        return bool(self._shapes)

    @property
    def noise(self) -> float:
        """Standard error of a timing ÷ the timing: 1.5 median deviations from what its shape usually takes."""
        return max(LEAST_NOISE, 1.5 * lower_median(self._errors))

    def usual_ms(self, rows: int, size: int) -> float | None:
        """Return the middle of a shape's timings; None where it was timed less than ``TRUSTED`` times."""
        timings = self._shapes.get((rows, size))
        return lower_median(timings.recent) if timings is not None and len(timings.recent) >= TRUSTED else None

    def probe(self, rows: int, size: int, ms: float, error: float, context: float = 0.0) -> None:
        """Add a timing that was made before anything was served; ``error``: its standard error ÷ it."""
        timings = self._shapes[rows, size] = Timings(ms, max(error, NOISE))
        timings.context = context
        self._added += 1

    def doubt(self) -> None:
        """Count what was timed so far as probes, for all may take another time from now on."""
        factor = self._factor()
        for each in self._shapes.values():
            each.probed = each.typical if each.recent else factor * each.probed
            each.error = max(each.error, NOISE)
            each.recent.clear()
        self._change()

    def _change(self) -> None:
        self.changes += 1
        self._curves.clear()

    def add(self, rows: int, size: int, ms: float, at: int, context: float = 0.0) -> None:
        """Add a timing made in round ``at``; ``context``: positions in the caches of all rows together."""
        timings = self._shapes.pop((rows, size), None)
        if timings is None or at - timings.at > 2 * HALF_LIFE:  # what it took then no longer holds
            timings = Timings()
        self._shapes[rows, size] = timings
        if timings.recent and self._changed(log(ms / timings.typical)):
            self.doubt()
        if timings.probed and not timings.recent:
            self._change()
        timings.context += (context - timings.context) / (1 + len(timings.recent))
        timings.recent.append(ms)
        timings.typical, timings.at = lower_quartile(timings.recent), at
        self._added += 1
        if len(self._shapes) > SHAPES:
            self._shapes.popitem(last=False)

    def _factor(self) -> float:
        """Return what probed shapes took that were timed since ÷ what their probes took."""
        timed = [each.typical / each.probed for each in self._shapes.values() if each.recent and each.probed]
        return lower_median(timed) if timed else 1.0

    def _changed(self, error: float) -> bool:
        """Enter by how much a timing departed, and return whether a few have shown that all takes another time now."""
        far = SURPRISES * self.noise
        if abs(error) > far and all(error * other > 0 for other in self._surprises):
            self._surprises.append(error)
        else:
            self._surprises = [error] if abs(error) > far else []
        self._errors.append(abs(error))
        if len(self._surprises) < (SLOWER if error > 0 else SURPRISES):
            return False
        self._surprises = []
        return True

    def curve(self, rows: int, first: int, most: int, context: float, now: int) -> CostCurve:
        """Return passes over so many rows from ``first`` to ``most`` in size, after round ``now``."""
        key = rows, first, most
        kept = self._curves.get(key)
        if kept is None or kept[0] <= self._added:
            if len(self._curves) >= SHAPES:
                self._curves.clear()
            fresh = self._added + 1 + min(FRESH, self._added // 2)
            kept = self._curves[key] = fresh, self._work_out(rows, first, max(most, first + 1), context, now)
        return kept[1]

    def _work_out(self, rows: int, first: int, most: int, context: float, now: int) -> CostCurve:
        points, inverse, weights = self._solve(now)
        span = most - first
        size = np.unique(np.concatenate([np.arange(min(span, 16) + 1), np.geomspace(1, span, GRID).round()])) + first
        asked = self._features(np.full_like(size, rows), size, np.full_like(size, context))
        cross = _kernel(asked, points)
        ms = np.maximum(cross @ weights, FLOOR)
        ms = ms if self._per_pass else np.maximum.accumulate(ms)  # more tokens take no less, whatever few timings show
        whole = _kernel(asked, asked) - cross @ inverse @ cross.T
        spread = np.maximum(whole.diagonal() + whole[0, 0] - 2 * whole[0], 0.0)
        return CostCurve(size, self._mean * ms, self._mean * np.sqrt(spread))

    def _features(self, rows: Floats, size: Floats, context: Floats) -> tuple[Floats, Floats]:
        """Return φ · LINE, and where each is for g."""
        by_size = 1 / size if self._per_pass else size / self._scale[1]
        line = np.stack([np.ones_like(rows), rows / self._scale[0], by_size, context / self._scale[2]], 1)
        return line * LINE, np.log(np.stack([rows, size], 1))

    def _solve(self, now: int) -> tuple[tuple[Floats, Floats], Floats, Floats]:
        """Return the timed shapes, the inverse of their covariance, and that times what they took."""
        if self._solved is None or self._solved_at != self._added:
            known, factor = self._shapes.values(), self._factor()
            rows, size = np.array(list(self._shapes), float).T
            context = np.array([each.context for each in known])
            ms = np.array([each.typical if each.recent else factor * each.probed for each in known])
            error = np.array([self.noise if each.recent else each.error for each in known])
            count = np.array([each.weight(now) for each in known])
            self._scale = np.maximum([rows.max(), size.max(), context.max()], 1.0)
            self._mean = float(ms.mean())
            points = self._features(rows, size, context)
            errors = (error * ms / self._mean) ** 2 / count
            inverse: Floats = np.linalg.inv(_kernel(points, points) + np.diag(errors)).astype(np.float64)
            self._solved = points, inverse, inverse @ (ms / self._mean)
            self._solved_at = self._added
        return self._solved


def _kernel(some: tuple[Floats, Floats], others: tuple[Floats, Floats]) -> Floats:
    """Return the covariance of what passes take, before any was timed."""
    apart = ((some[1][:, None] - others[1][None]) ** 2).sum(-1)
    return np.asarray(some[0] @ others[0].T + BEND**2 * np.exp(-apart / 2))
