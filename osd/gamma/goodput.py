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
from osd.gamma.probing import Prober

_CAUTION = 1.2
"""λ counts so many times: what is hoped for is estimated, and acted on where the estimate is high. From 1.0 to 1.5 the
speed differs by 2 % on recorded traffic; 1.2 was best or next to it on each of four data sets at batches 1 and 8."""
_LENGTH = 64.0
"""Tokens that a request is taken to have before any has ended."""
_MEMORY = 0.97
"""What the price of time keeps of its past with each round."""
_PATIENCE = 4.0
"""Plain rounds that the price of time begins with."""
_PROBING = 0.005
"""Share of decoding time for probes. One row makes them, so that they are cheap, and half of what is usual will do."""
_REACH = 1.5
"""The price of a verified token is the rise of b up to so many times the drafted tokens of a usual pass."""
_REFRESH = 16
"""Rounds for which a batch size's costs are used before they are looked up again."""


class Prices:
    """What passes of a batch size cost just now, in milliseconds."""

    __slots__ = ("draft", "plain", "rounds", "token")

    def __init__(self, rounds: int, plain: float, draft: float, token: float) -> None:
        self.rounds = rounds
        """Rounds that had been timed by then."""
        self.plain = plain
        """b(B, B): a pass without drafts."""
        self.draft = draft
        """a(B): a draft pass."""
        self.token = token
        """b'(N): each drafted token in a target pass."""


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
        self._cached: dict[int, Prices] = {}
        self._usual: dict[int, tuple[float, float]] = {}
        """Drafted tokens and draft passes of a usual round, by batch size."""
        self._gained = self._spent = _PATIENCE
        self._batch = 1
        self._probed: GoodputRow | None = None
        self._rows: Sequence[GoodputRow] = []
        self._length = _LENGTH
        """Tokens that a request usually has."""
        self._prices: Prices | None = None
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
        if self._prices is None:
            gammas = self._one_of(rows, self._initial)
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
        rate = self._rate(self._prices)
        price = rate * self._prices.token
        kept = [row.survival >= price for row in rows]
        hopes = sum([row.hope(price) for row, keep in zip(rows, kept, strict=True) if keep])
        on = Go.ON if hopes > rate * self._prices.draft else Go.LAST
        return [on if keep else Go.DECLINE for keep in kept]

    def _decide(
        self, rows: Sequence[GoodputRow], prices: Prices, batch: int, rooms: Sequence[int], unread: Sequence[int]
    ) -> list[int]:
        """gamma_max for the rows that take part where a first draft pass is worth it, else 0; or a try."""
        rate = self._rate(prices)
        hopes = [row.hope(rate * prices.token) if room > 0 else 0.0 for row, room in zip(rows, rooms, strict=True)]
        for i, behind in enumerate(unread):
            if behind and not self._pays(rows[i], hopes[i], rooms[i], rate * behind * self._costs.reading_ms):
                hopes[i] = 0.0
        gamma = self._maximum if sum(hopes) > rate * prices.draft else 0
        table = (prices.plain, prices.plain + prices.draft + prices.token)
        chosen = self._prober.instead(gamma, self.speedup, batch, table)
        self._trusted = chosen == gamma
        if gamma == chosen:
            return [gamma if hope > 0 else 0 for hope in hopes]
        return self._one_of(rows, chosen)

    def _pays(self, row: GoodputRow, hope: float, room: int, reading: float) -> bool:
        """Whether drafting for the rest of a row's text wins more tokens than the drafter's reading up costs.

        What it wins with each token to come is 1 − 1 ÷ speedup, where there is speculation; at first, what is hoped of
        one draft pass. A text is taken to end where texts usually do.
        """
        left = min(room, max(self._length - row.emitted, self._length / 2))
        return max(hope / (1 + hope), 1 - 1 / self.speedup) * left > reading

    def _one_of(self, rows: Sequence[GoodputRow], gamma: int) -> list[int]:
        """A try is one row's, the one that made the last as long as it is there: its text has been read."""
        if self._probed not in rows:
            self._probed = rows[0]
        return [gamma if row is self._probed else 0 for row in rows]

    def _rate(self, prices: Prices) -> float:
        """λ, in tokens a millisecond, with caution."""
        return _CAUTION * self.speedup * self._batch / prices.plain

    def _settle(self, batch: int) -> None:
        """Take the last round into the price of time, reckoned in plain rounds, and with costs instead of timings:
        so neither a change of batch size nor a stray timing moves it."""
        seen, self.tally = self.tally, Tally()
        if seen.rows and (prices := self._prices):
            share = seen.rows / self._batch
            ms = share * (prices.plain + seen.passes * prices.draft) + seen.drafted * prices.token
            self._gained = _MEMORY * self._gained + seen.emitted / self._batch
            self._spent = _MEMORY * self._spent + ms / prices.plain
        if seen.passes:
            drafted, passes = self._usual.get(self._batch, (seen.drafted, seen.passes))
            self._usual[self._batch] = (
                drafted + (1 - _MEMORY) * (seen.drafted - drafted),
                passes + (1 - _MEMORY) * (seen.passes - passes),
            )
        self._batch = batch

    def _notice_ends(self, rows: Sequence[GoodputRow]) -> None:
        """Requests that are not in the batch any more have ended: that is how long they were."""
        if len(rows) != len(self._rows) or any(a is not b for a, b in zip(rows, self._rows, strict=True)):
            here = {id(row) for row in rows}
            for row in self._rows:
                if id(row) not in here:
                    self._length += (1 - _MEMORY) * (row.emitted - self._length)
            self._rows = list(rows)

    def _prices_of(self, batch: int) -> Prices | None:
        """None while drafting or verifying was never timed."""
        known = self._cached.get(batch)
        if known and known.rounds + _REFRESH > self._costs.rounds > 4 * _REFRESH:
            return known
        drafted, passes = self._usual.get(batch, (0.0, 1.0))
        beyond, depth = max(batch, round(_REACH * drafted)), round(passes)
        plain, draft = self._costs.verify_ms(batch, batch), self._costs.draft_ms(batch, depth)
        full = self._costs.verify_ms(batch, batch + beyond)
        if plain is None or draft is None or full is None:
            return None
        known = self._cached[batch] = Prices(self._costs.rounds, plain, draft / depth, max(0.0, full - plain) / beyond)
        return known
