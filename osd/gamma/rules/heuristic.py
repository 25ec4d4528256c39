"""transformers' ``num_assistant_tokens_schedule="heuristic_transient"``: two up or one down (candidate_generator.py).

Two more tokens after a draft that was accepted whole, else one fewer, at least 1. transformers has no upper limit;
here it is ``maximum``. Its ``"heuristic"`` also hands γ on to the next call; here requests run side by side, so each
starts at ``initial``.
"""

from __future__ import annotations

from osd.gamma.base import Observation, RowByRow

GAMMA_MIN = 1


class HeuristicRow:
    """The γ of one request."""

    __slots__ = ("_gamma", "_maximum")

    def __init__(self, initial: int, maximum: int) -> None:
        self._gamma, self._maximum = max(GAMMA_MIN, initial), maximum

    def next_gamma(self, batch: int) -> int:
        """Return γ."""
        return self._gamma

    def observe(self, seen: Observation) -> None:
        """Set γ ← γ + 2 when all drafted tokens were accepted, however few there was room for; else γ − 1."""
        if not seen.drafted:
            return
        step = -1 if seen.rejected else 2
        self._gamma = min(self._maximum, max(GAMMA_MIN, self._gamma + step))


class HeuristicController(RowByRow):
    """The heuristic_transient rule of transformers."""

    name: str = "heuristic"

    def __init__(self, initial: int, maximum: int) -> None:
        self._initial, self._maximum = initial, maximum

    def start(self) -> HeuristicRow:
        """Return the state of a new request, which begins with ``initial``."""
        return HeuristicRow(self._initial, self._maximum)
