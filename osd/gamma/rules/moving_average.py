"""SGLang's adaptive speculation: a moving average of accepted tokens picks γ for the batch (adaptive_spec_params.py).

After every round m ← (1 − α) m + α · (mean over the rows of accepted tokens). Every fifth round, after ten of
warm-up, γ moves along the candidates c_1 < c_2 < … of the batch size:

    down from c_i, step by step, while  m ≤ c_(i−1) − 0.5 + hysteresis    (0.5 + hysteresis where c_(i−1) is 0)
    else up from c_i, step by step, while  m > c_i − 0.5

At γ = 0 nothing can be accepted and m stands still; the next decision tries the least candidate above 0. Each range of
batch sizes has candidates, γ and m of its own. The numbers are SGLang's defaults; candidates above ``maximum`` are
left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from osd.gamma.base import FixedBeforeRound, Observation

ALPHA = 0.2
"""α: weight of the newest round."""
INTERVAL = 5
"""Rounds from one decision to the next."""
WARMUP = 10
"""Rounds before the interval begins to count."""
SLOTS: Mapping[int, tuple[tuple[int, ...], float]] = {
    1: ((1, 3, 5, 7), -0.25),
    8: ((0, 1, 3), 0.0),
    32: ((0, 1), 0.0),
    64: ((0,), 0.0),
}
"""Candidates for γ and the hysteresis of a move down, by the least batch size."""


class Slot:
    """γ and the moving average of one range of batch sizes."""

    def __init__(
        self,
        initial: int,
        candidates: Sequence[int],
        hysteresis: float,
        *,
        alpha: float = ALPHA,
        interval: int = INTERVAL,
        warmup: int = WARMUP,
    ) -> None:
        """Begin with γ = ``initial``, or the middle candidate where that is none of them. ``candidates`` rise."""
        self._candidates, self._hysteresis = candidates, hysteresis
        self._alpha, self._interval, self._warmup = alpha, interval, warmup
        self._index = candidates.index(initial) if initial in candidates else len(candidates) // 2
        self.average = self.gamma - 1.0
        self._rounds = 0

    @property
    def gamma(self) -> int:
        """The candidate in use."""
        return self._candidates[self._index]

    def update(self, accepted: Sequence[int]) -> None:
        """Add a round; ``accepted``: accepted tokens of each row that drafted."""
        if accepted:
            self.average += self._alpha * (sum(accepted) / len(accepted) - self.average)
        self._rounds += 1
        decided = self._rounds - self._warmup
        if decided > 0 and decided % self._interval == 0:
            self._decide()

    def _decide(self) -> None:
        if self.gamma == 0:
            self._try_again()
        elif not self._fall():
            self._rise()

    def _try_again(self) -> None:
        self._index = min(self._index + 1, len(self._candidates) - 1)
        if self.gamma and self.average < 0:  # begun at 0, so that it has no history
            self.average = self.gamma - 1.0

    def _fall(self) -> bool:
        before = self._index
        while self._index > 0 and self.average <= abs(self._candidates[self._index - 1] - 0.5) + self._hysteresis:
            self._index -= 1
        return self._index < before

    def _rise(self) -> None:
        while self._index < len(self._candidates) - 1 and self.average > self.gamma - 0.5:
            self._index += 1


class MovingAverageRow:
    """State of one request: it only passes on what it sees."""

    __slots__ = ("_accepted",)

    def __init__(self, accepted: list[int]) -> None:
        self._accepted = accepted

    def observe(self, seen: Observation) -> None:
        """Pass on the accepted tokens; a row that drafted nothing does not count."""
        if seen.drafted:
            self._accepted.append(seen.accepted)


class MovingAverageController(FixedBeforeRound):
    """SGLang's moving-average rule: all rows get the same γ."""

    name: str = "moving_average"

    def __init__(self, initial: int, maximum: int) -> None:
        self._from = sorted(SLOTS)
        self._slots = {
            batch: Slot(initial, [gamma for gamma in candidates if gamma <= maximum], hysteresis)
            for batch, (candidates, hysteresis) in SLOTS.items()
        }
        self._accepted: list[int] = []
        self._running: Slot | None = None

    def start(self) -> MovingAverageRow:
        """Return the state of a new request."""
        return MovingAverageRow(self._accepted)

    def plan(
        self, rows: Sequence[MovingAverageRow], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()
    ) -> list[int]:
        """Add the round before, where there was one, and give every row the γ of this batch size."""
        if self._running:
            self._running.update(self._accepted)
            self._accepted.clear()
        self._running = self._slots[self._from[bisect_right(self._from, batch) - 1]]
        return [self._running.gamma] * len(rows)
