"""What time is worth: λ, the tokens a millisecond that decoding makes now, and how much more whole drafts turn out
to win than their first pass promised."""

from __future__ import annotations

from osd.gamma.goodput_row import Tally
from osd.gamma.prices import Prices

MEMORY = 0.97
"""What the price of time keeps of its past with each round."""
_PATIENCE = 4.0
"""Plain rounds that the price of time begins with."""
_WORTH = 2.0
"""How much more a whole draft is taken to be worth than its first pass promises, until that is known."""


def nearer(before: float, now: float) -> float:
    """A moving average."""
    return before + (1 - MEMORY) * (now - before)


class PriceOfTime:
    """λ, reckoned in plain rounds, and with costs instead of timings: so neither a change of batch size nor a stray
    timing moves it."""

    def __init__(self) -> None:
        self._gained = self._spent = _PATIENCE
        self.speedup = 1.0
        """λ ÷ what plain decoding makes, lately; never below 1, which not speculating achieves."""

    def rate(self, prices: Prices, batch: int) -> float:
        """λ, in tokens a millisecond."""
        return self.speedup * batch / prices.plain

    def saw(self, seen: Tally, prices: Prices, batch: int) -> None:
        """A round of a batch of so many rows, or several plain ones."""
        keeps = MEMORY**seen.rounds
        each = (1 - keeps) / (1 - MEMORY) / seen.rounds
        passes = seen.passes * prices.draft + (prices.begin if seen.passes else 0.0)
        ms = (prices.plain + passes) * seen.rows / batch + seen.drafted * prices.token
        self._gained = keeps * self._gained + each * seen.emitted / batch
        self._spent = keeps * self._spent + each * ms / prices.plain
        self.speedup = max(1.0, self._gained / self._spent)


class WorthOfDrafts:
    """Tokens won by whole drafts, less what they cost after the first pass, ÷ what the first passes promised."""

    def __init__(self) -> None:
        self._won, self._promised = _WORTH, 1.0
        self.factor = _WORTH

    def saw(self, seen: Tally, prices: Prices, rate: float, promised: float) -> None:
        """A round whose drafts the rule sized; its first pass promised so many tokens."""
        later = (seen.passes - 1) * prices.draft + seen.drafted * prices.token
        self._won = nearer(self._won, seen.emitted - seen.rows - rate * later)
        self._promised = nearer(self._promised, promised)
        self.factor = max(1.0, self._won / self._promised)
