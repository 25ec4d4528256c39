"""What time is worth: λ, the tokens a millisecond that decoding makes now."""

from __future__ import annotations

from osd.gamma.goodput.goodput_row import Tally
from osd.gamma.goodput.prices import Prices

MEMORY = 0.97
"""What the price of time keeps of its past with each round."""
_PATIENCE = 4.0
"""Plain rounds that the price of time begins with."""


def nearer(before: float, now: float) -> float:
    """Return the moving average ``before``, moved on by ``now``."""
    return before + (1 - MEMORY) * (now - before)


class PriceOfTime:
    """λ, reckoned in plain rounds, and with costs instead of timings: so neither a change of batch size nor a stray
    timing moves it."""

    def __init__(self) -> None:
        self._gained = self._spent = _PATIENCE
        self.speedup = 1.0
        """λ ÷ what plain decoding makes, lately; never below 1, which not speculating achieves."""

    def rate(self, prices: Prices, batch: int) -> float:
        """Return λ, in tokens a millisecond."""
        return self.speedup * batch / prices.plain

    def saw(self, seen: Tally, prices: Prices, batch: int) -> None:
        """Learn from some rounds of a batch of so many rows."""
        keeps = MEMORY**seen.rounds
        each = (1 - keeps) / (1 - MEMORY) / seen.rounds
        part = seen.rows / (batch * seen.rounds)
        ms = part * (seen.rounds * prices.plain + seen.begun * prices.begin + seen.passes * prices.draft)
        if seen.drafted:
            verified = part * max(1, seen.begun)
            ms += verified * prices.verifying.of(seen.drafted / verified)
        self._gained = keeps * self._gained + each * seen.emitted / batch
        self._spent = keeps * self._spent + each * ms / prices.plain
        self.speedup = max(1.0, self._gained / self._spent)
