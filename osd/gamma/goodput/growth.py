"""What verifying so many drafted tokens takes, token by token: flat as long as weights are what a pass waits for, steep
where it is at work, with steps between.

Timings of passes over n drafted tokens, each held a little to a line through all of them, made to rise (least squares
of what never falls, by pooling neighbours that do), straight between them, and the line's slope before the first and
beyond the last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

Point = tuple[int, float, float]
"""Drafted tokens, milliseconds more than a plain pass, weight."""
_LINE = 2.0
"""Timings that the line weighs beside a point's own."""


def rising(points: Sequence[Point]) -> list[float]:
    """Return the milliseconds that never fall and are nearest to ``points``' (least Σ w (value − ms)²), by tokens."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for _, ms, weight in points:
        pool = ms, weight, 1
        while pools and pools[-1][0] >= pool[0]:
            mean, before, count = pools.pop()
            whole = before + pool[1]
            pool = (mean * before + pool[0] * pool[1]) / whole, whole, count + pool[2]
        pools.append(pool)
    return [mean for mean, _, count in pools for _ in range(count)]


class Growth:
    """Milliseconds of a target's pass by drafted tokens, of all rows together, beyond a plain one's."""

    def __init__(self, points: Sequence[Point], jump: float, token: float) -> None:
        """``jump`` + ``token`` · n is the line."""
        held = sorted(
            (n, max(0.0, weight * ms + _LINE * (jump + token * n)) / (weight + _LINE), weight + _LINE)
            for n, ms, weight in points
        )
        self._at, self._ms = [n for n, _, _ in held], rising(held)
        self._jump, self._token = jump, token

    def of(self, n: float) -> float:
        """Return the milliseconds of ``n`` drafted tokens; nothing for none."""
        at, ms = self._at, self._ms
        if n <= 0:
            return 0.0
        if not at:
            return self._jump + self._token * n
        place = bisect_left(at, n)
        if place in (0, len(at)):
            end = -1 if place else 0
            return max(0.0, ms[end] + self._token * (n - at[end]))
        part = (n - at[place - 1]) / (at[place] - at[place - 1])
        return ms[place - 1] + part * (ms[place] - ms[place - 1])
