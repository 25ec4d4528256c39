"""The drafts of a whole batch, sized together for the most tokens a second. osd's own rule; derivation: docs/gamma.md.

    λ      tokens a millisecond that decoding makes now: the price of time
    θ      λ · b'(N): what one more token in the target's pass costs, in tokens
    S      the chance that a row's draft is accepted up to here: Π of its tokens' chances
    f      what the next token's S will be worth, before its draft pass is made: E max(0, S p − θ)

After each draft pass a row keeps the token while S ≥ θ, and the batch makes another pass while Σ f > λ · a(B).
Before the first, S = 1; if even that pass is not worth it, nobody speculates. λ is what this very rule achieves:
Dinkelbach's way to the largest ratio of tokens to time. A row alone with b' = 0 stops as in SpecDec++ (Theorem 4.3):
when the chance that something was rejected, 1 − S, has grown past a threshold.

A token is declined on peaks only, which are known before it is drawn, so sampling stays lossless.
"""

from __future__ import annotations

from collections.abc import Sequence

from osd.gamma.base import CostModel, Go, Signal
from osd.gamma.calibration import Calibration
from osd.gamma.goodput_row import GoodputRow, Tally
from osd.gamma.prices import Prices, prices_of
from osd.gamma.probing import BURST, Prober

FIRST_JUDGED = 16
"""Judged tokens before the rule speaks; until then every draft has gamma_initial tokens."""
_CAUTION = 1.2
"""Within a round λ counts so many times: what is hoped for is estimated, and acted on where the estimate is high. On
recorded traffic speeds from 1.0 to 1.35 differ by 2 % at most, and 1.2 was best or next to it on three data sets."""
_LENGTH = 64.0
"""Tokens that a request is taken to have before any has ended."""
_MEMORY = 0.97
"""What the price of time keeps of its past with each round."""
_PATIENCE = 4.0
"""Plain rounds that the price of time begins with."""
_ASK_AGAIN = 64
"""Tokens after which a request that a probe found bad is asked again."""
_PROBING = 0.0075
"""Share of decoding time for probes; one row makes them, so that they are cheaper than a batch's."""
_WORTH = 2.0
"""How much more a whole draft is taken to be worth than its first pass promises, until that is known."""
_REFRESH = 16
"""Rounds for which a batch size's costs are used before they are looked up again."""


class GoodputController:
    """See the module."""

    name: str = "goodput"
    signal: Signal = "peak"

    def __init__(self, costs: CostModel, *, initial: int, maximum: int) -> None:
        self.calibration = Calibration()
        self.tally = Tally()
        """Of the round that is being observed."""
        self._costs, self._initial, self._maximum = costs, max(1, initial), maximum
        self._prober = Prober(costs, _PROBING)
        self._cached: dict[tuple[int, int], Prices] = {}
        self._usual: dict[int, float] = {}
        """Draft passes of a usual round that speculates, by batch size."""
        self._gained = self._spent = _PATIENCE
        self._batch = 1
        self._asked: GoodputRow | None = None
        self._rows: Sequence[GoodputRow] = []
        self._length = _LENGTH
        """Tokens that a request usually has."""
        self._prices: Prices | None = None
        self._idle_before: Prices | None = None
        """The prices at which the round before did not speculate; None where it did."""
        self._changed = True
        """Whether requests came, went or were judged since the last round."""
        self._won, self._promised = _WORTH, 1.0
        self._hoped = 0.0
        """What the first draft pass of this round promised."""
        self._trusted = False
        """Whether this round's drafts are sized by the rule, not by gamma_initial or a probe."""

    @property
    def speedup(self) -> float:
        """λ ÷ what plain decoding makes, lately; never below 1, which not speculating achieves."""
        return max(1.0, self._gained / self._spent)

    def start(self) -> GoodputRow:
        """A new request, which leans neither way."""
        return GoodputRow(self.calibration, lambda seen: self.tally.add(seen))

    def plan(
        self, rows: Sequence[GoodputRow], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()
    ) -> list[int]:
        """All that there is room for, to be cut short in the round; or 0 for all."""
        self._settle(batch)
        self._notice_ends(rows)
        self._prices, self._trusted = self._prices_of(batch), False
        for row in rows:
            row.begin()
        if self._prices is None or self.calibration.judged < FIRST_JUDGED:
            gammas = [self._initial] * len(rows)
        else:
            gammas = self._decide(rows, self._prices, batch, rooms, unread)
        return [min(gamma, room) for gamma, room in zip(gammas, rooms, strict=True)]

    def steer(self, rows: Sequence[GoodputRow], drafted: int, signals: Sequence[float]) -> list[Go]:
        """Keep the token where S ≥ θ; go on together while another pass is worth it."""
        self.tally.passes = drafted
        for row, peak in zip(rows, signals, strict=True):
            row.look(peak)
        if self._prices is None or not self._trusted:
            return [Go.ON] * len(rows)
        rate = _CAUTION * self._rate(self._prices)
        price = rate * self._prices.token
        kept = [row.survival >= price for row in rows]
        hopes = sum([row.hope(price) for row, keep in zip(rows, kept, strict=True) if keep])
        on = Go.ON if hopes > rate * self._prices.draft else Go.LAST
        return [on if keep else Go.DECLINE for keep in kept]

    def _decide(
        self, rows: Sequence[GoodputRow], prices: Prices, batch: int, rooms: Sequence[int], unread: Sequence[int]
    ) -> list[int]:
        """gamma_max for the rows that take part where a first draft pass is worth it, else 0; or a try."""
        gamma, hopes = 0, [0.0] * len(rows)
        if self._changed or self._idle_before is not prices:
            gamma, hopes = self._weigh(rows, prices, rooms, unread)
        self._changed = False
        table = (prices.plain, prices.plain + prices.begin + prices.draft + prices.token)
        asked = self._whom_to_ask(rows, rooms)
        self._idle_before = None if gamma else prices
        if not gamma and asked is None:
            return [0] * len(rows)
        chosen = self._prober.instead(gamma, self.speedup, batch, table)
        self._trusted = chosen == gamma
        if gamma == chosen:
            return [gamma if hope > 0 else 0 for hope in hopes]
        return [0] * len(rows) if asked is None else self._only(rows, asked, chosen)

    def _weigh(
        self, rows: Sequence[GoodputRow], prices: Prices, rooms: Sequence[int], unread: Sequence[int]
    ) -> tuple[int, list[float]]:
        """gamma_max or 0, and what each row hopes of a first draft pass."""
        rate = self._rate(prices)
        hopes = [row.hope(rate * prices.token) if room > 0 else 0.0 for row, room in zip(rows, rooms, strict=True)]
        for i, behind in enumerate(unread):
            if behind and not self._pays(rows[i], hopes[i], rooms[i], rate * behind * self._costs.reading_ms):
                hopes[i] = 0.0
        self._hoped = sum(hopes)
        return (self._maximum if self._worth * self._hoped > rate * (prices.begin + prices.draft) else 0), hopes

    def _whom_to_ask(self, rows: Sequence[GoodputRow], rooms: Sequence[int]) -> GoodputRow | None:
        """The row for a probe: the one that is being asked, else one that was not asked lately. A new request
        is likelier to be another kind of text than one that was tried is to have changed."""
        if self._asked and self._asked in rows and self._asked.tries % BURST:
            return self._asked
        fresh = [row for row, room in zip(rows, rooms, strict=True) if room > BURST and row.emitted >= row.ask_after]
        return fresh[0] if fresh else None

    def _only(self, rows: Sequence[GoodputRow], asked: GoodputRow, gamma: int) -> list[int]:
        """One row drafts so many tokens."""
        if gamma:
            asked.tries += 1
            asked.ask_after = asked.emitted + _ASK_AGAIN
        self._asked = asked
        return [gamma if row is asked else 0 for row in rows]

    def _pays(self, row: GoodputRow, hope: float, room: int, reading: float) -> bool:
        """Whether drafting for the rest of a row's text wins more tokens than the drafter's reading up costs.

        What it wins with each token to come is 1 − 1 ÷ speedup, where there is speculation; at first, what is hoped of
        one draft pass. A text is taken to end where texts usually do.
        """
        left = min(room, max(self._length - row.emitted, self._length / 2))
        return max(hope / (1 + hope), 1 - 1 / self.speedup) * left > reading

    def _rate(self, prices: Prices) -> float:
        """λ, in tokens a millisecond."""
        return self.speedup * self._batch / prices.plain

    def _settle(self, batch: int) -> None:
        """Take the last round into the price of time, reckoned in plain rounds, and with costs instead of timings:
        so neither a change of batch size nor a stray timing moves it."""
        seen, self.tally = self.tally, Tally()
        if seen.rows and (prices := self._prices):
            passes = seen.passes * prices.draft + (prices.begin if seen.passes else 0.0)
            ms = (prices.plain + passes) * seen.rows / self._batch + seen.drafted * prices.token
            self._gained = _MEMORY * self._gained + seen.emitted / self._batch
            self._spent = _MEMORY * self._spent + ms / prices.plain
        if seen.passes:
            self._changed = True
            self._learn_usual(seen)
        self._batch = batch

    def _learn_usual(self, seen: Tally) -> None:
        """What a round that speculates drafts, and how much more it is worth than its first pass promised."""
        self._usual[self._batch] = _nearer(self._usual.get(self._batch, float(seen.passes)), seen.passes)
        if self._prices and self._trusted and self._hoped > 0:
            later = (seen.passes - 1) * self._prices.draft + seen.drafted * self._prices.token
            worth = seen.emitted - seen.rows - self._rate(self._prices) * later
            self._won = _nearer(self._won, worth)
            self._promised = _nearer(self._promised, self._hoped)

    @property
    def _worth(self) -> float:
        """Tokens won by whole drafts, less what they cost after the first pass, ÷ what the first passes promised."""
        return max(1.0, self._won / self._promised)

    def _notice_ends(self, rows: Sequence[GoodputRow]) -> None:
        """Requests that are not in the batch any more have ended: that is how long they were."""
        if len(rows) != len(self._rows) or any(a is not b for a, b in zip(rows, self._rows, strict=True)):
            self._changed = True
            here = {id(row) for row in rows}
            for row in self._rows:
                if id(row) not in here:
                    self._length += (1 - _MEMORY) * (row.emitted - self._length)
            self._rows = list(rows)

    def _prices_of(self, batch: int) -> Prices | None:
        """None while drafting or verifying was never timed."""
        key = batch, self._costs.drafting(batch)
        known = self._cached.get(key)
        if known and known.rounds + _REFRESH > self._costs.rounds > 4 * _REFRESH:
            return known
        found = prices_of(self._costs, batch, self._usual.get(batch, 1.0))
        if found:
            self._cached[key] = found
        return found


def _nearer(before: float, now: float) -> float:
    """A moving average."""
    return before + (1 - _MEMORY) * (now - before)
