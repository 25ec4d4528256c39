"""Method 2 of on-the-fly adaptation: a saturating counter, as in branch prediction (section 4.2).

One up when every drafted token was accepted, one down when one was refused, between 0 and ``maximum``. A round
without a draft refuses nothing, so a row at 0 tries one token in its next round.
"""

from __future__ import annotations

from osd.gamma.base import Observation, RowByRow


class FsmRow:
    """The counter of one request."""

    __slots__ = ("_gamma", "_maximum")

    def __init__(self, initial: int, maximum: int) -> None:
        self._gamma, self._maximum = initial, maximum

    def next_gamma(self, batch: int) -> int:
        """Return the counter."""
        return self._gamma

    def observe(self, seen: Observation) -> None:
        """Set γ ← γ − 1 after a rejection, else γ + 1, within 0 and γ_max."""
        step = -1 if seen.rejected else 1
        self._gamma = min(self._maximum, max(0, self._gamma + step))


class FsmController(RowByRow):
    """The saturating counter rule. ``maximum`` is the paper's γ_max."""

    name: str = "fsm"

    def __init__(self, initial: int, maximum: int) -> None:
        self._initial, self._maximum = initial, maximum

    def start(self) -> FsmRow:
        """Return the state of a new request, which begins with ``initial``."""
        return FsmRow(self._initial, self._maximum)
