"""The drafts of a whole batch, sized together for the most tokens a second. osd's own rule (docs/goodput.md).

    λ      tokens a millisecond that decoding makes now: the price of time
    θ_d    λ · what verifying a row's d-th token costs: its price, in tokens
    S      the chance that a row's draft is accepted up to here: Π of its tokens' chances
    U_d    what going on after d tokens may yet win: max(0, f − λ a)
    f      what the next token will be worth, before its draft pass is made: E max(0, S p − θ + U)

After each draft pass a row keeps the token while S + U ≥ θ, and the batch makes another pass while Σ f > λ · a(B).
Before the first, S = 1; if even that pass is not worth it, nobody speculates. λ is what this very rule achieves:
Dinkelbach's way to the largest ratio of tokens to time. A row alone with θ = 0 stops as in SpecDec++ (Theorem 4.3):
when the chance that something was rejected, 1 − S, has grown past a threshold.

A token is declined on peaks only, which are known before it is drawn, so sampling stays lossless.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from osd.gamma.base import CostModel, DraftDecision, Signal
from osd.gamma.costs.probing import Prober
from osd.gamma.goodput.asking import ROUNDS, Asking
from osd.gamma.goodput.beginning import FREE, Beginning
from osd.gamma.goodput.contexts import Peak
from osd.gamma.goodput.goodput_row import GoodputRow
from osd.gamma.goodput.last_token import LastToken
from osd.gamma.goodput.prices import PriceList, Prices
from osd.gamma.goodput.weigher import Weigher
from osd.gamma.goodput.worth import PriceOfTime, nearer

_REFRESH = 16
"""Judged tokens after which it is worked out again what may yet be won."""
_MOVED = 0.1
"""Part of its price by which a draft pass has become dearer or cheaper when it is, too."""
_STEADY, _STEADIEST = 4, 8
"""Rounds that draft once it was found to pay, and each time that it is found again one more, up to so many: what is
asked before a draft costs as much as a third of a pass. Of one row alone only its last tokens are asked about."""
_SOON_READ = 32
"""Unread tokens up to which a row that goes on needs no thought: reading them takes a fraction of a round, and pays."""
_COMING_AND_GOING = 3
"""Rounds for which a batch that rests goes on resting though requests came or went: where one leaves another follows at
once, and deciding costs a twentieth of a pass. One row alone has nobody to wait for."""
_LENGTH = 64.0
"""Tokens that a request is taken to have before any has ended."""
_PROBING = 0.004
"""Share of decoding time for probes; one row makes them, so that they are cheaper than a batch's."""
_PROBING_FIRST = 20_000.0
"""Milliseconds of decoding in which it is twice that: what an engine's first rounds say of costs may be all wrong."""
_ALWAYS = float("-inf")


class GoodputController:
    """See the module."""

    name: str = "goodput"
    signal: Signal = "peak_echo"

    def __init__(self, costs: CostModel, *, initial: int, maximum: int) -> None:
        self.weigher = Weigher(max(initial, maximum, 1))
        self._costs, self._maximum = costs, maximum
        self._price_list, self._time = PriceList(costs), PriceOfTime()
        self._prober, self._asking = Prober(costs, _PROBING, _PROBING_FIRST, ROUNDS, FREE), Asking()
        self._beginning = Beginning(costs, self.weigher)
        self._batch = 1
        self._last_token = LastToken(self.weigher)
        self._rows: Sequence[GoodputRow] = []
        self._length = _LENGTH
        """Tokens that a request usually has."""
        self._prices: Prices | None = None
        self._foreseen = (0, 0, 1.0)
        """What may yet be won was last worked out for so many rows, holds until so many tokens are judged, and was for
        this price of a row's draft pass."""
        self._idle_before: Prices | None = None
        """The prices at which the round before did not speculate; None where it did."""
        self._quiet = 0
        """Rounds to come in which there is nothing to decide: nobody drafts, nobody may be asked, prices stand."""
        self._steady = 0
        """Rounds to come in which all draft without asking anew whether it pays."""
        self._steadiness = _STEADY
        """How many there will be next time."""
        self._entry = 0.0
        """λ (begin + a(B)) ÷ 1.3 or more, and λ times the jump of V: what rows must hope for together."""
        self._jump = 0.0
        """λ times the jump of V: what they must keep together to be verified at all."""
        self._held_back = False
        """Whether rows go without for want of room, or because reading up is dear."""
        self._waits = 0
        """Rounds to come in which a batch that rests need not be looked at, whoever came or went."""
        self._changed = True
        """Whether requests came, went or were judged since the last round."""
        self._bar = _ALWAYS
        """λ a(B) in a round that the rule sizes; others keep every token."""

    @property
    def speedup(self) -> float:
        """λ ÷ what plain decoding makes, lately; never below 1, which not speculating achieves."""
        return self._time.speedup

    def start(self) -> GoodputRow:
        """Return the state of a new request, which is taken to be like the others."""
        return self.weigher.start()

    def plan(
        self, rows: Sequence[GoodputRow], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()
    ) -> list[int]:
        """Return each row's γ: all that it has room for, to be cut short in the round, or 0."""
        stands = self._quiet or (self._steady and max(unread, default=0) <= _SOON_READ)
        if stands and batch == self._batch and rows == self._rows:
            if not (self._quiet and self._last_token.wakes(rows)):
                return self._as_before(rows, rooms)
            self._changed = True
        if self._quiet and self._waits and batch > 1:
            self._waits -= 1
            return self._as_before(rows, rooms)
        self._quiet = self._steady = 0
        self._settle(batch)
        self._notice_changes(rows)
        prices = self._prices = self._price_list.of(batch)
        self._bar = _ALWAYS
        if prices is None or self._beginning.knows_little:
            self.weigher.begin(rows)
            gammas = self._beginning.tries(rooms)
        else:
            gammas = self._decide(rows, prices, batch, rooms, unread)
        return [min(gamma, room) for gamma, room in zip(gammas, rooms, strict=True)]

    def should_continue(self, rows: Sequence[GoodputRow], drafted: int, signals: Sequence[Peak]) -> list[DraftDecision]:
        """Keep the token where S + U ≥ θ; go on together while another pass is worth it."""
        tally = self.weigher.tally
        tally.passes += 1
        tally.begun += drafted == 1
        return self.weigher.weigh(rows, signals, self._bar, self._jump if drafted == 1 else 0.0)

    def _as_before(self, rows: Sequence[GoodputRow], rooms: Sequence[int]) -> list[int]:
        """Return the γ of each row for one more round like the last."""
        self.weigher.tally.rounds += 1
        if self._quiet:
            self._quiet -= 1
            return [0] * len(rows)
        self._steady -= 1
        hopes = self.weigher.begin(rows)
        if len(rows) == 1 and hopes[0] <= self._entry and self._last_token.skips():
            return [0]
        return [min(self._maximum, room) for room in rooms]

    def _decide(
        self, rows: Sequence[GoodputRow], prices: Prices, batch: int, rooms: Sequence[int], unread: Sequence[int]
    ) -> list[int]:
        """Return gamma.max for the rows that take part where a first draft pass is worth it, else 0; or a probe's γ."""
        gamma = 0
        hopes: list[float] = []
        if self._changed or self._idle_before is not prices:
            gamma, hopes = self._weigh(rows, prices, rooms, unread)
        self._changed = False
        self._idle_before = None if gamma else prices
        if hopes and self._last_token.weighed(rows, gamma > 0 or self._held_back, self._entry):
            self._idle_before = None
            self._go_on_drafting(prices, batch, unread)
            return [0]
        asked = None if gamma else self._asking.whom(rows, rooms)
        if not gamma and asked is None:
            return self._rest(rows, prices, self._asking.rest(rows))
        table = (prices.plain, prices.try_ms)
        free = self._beginning.frees(asked, batch)
        chosen = self._prober.instead(gamma, self._time.speedup, batch, table, free)
        if gamma and chosen:
            self._go_on_drafting(prices, batch, unread)
            return [gamma if hope > 0 else 0 for hope in hopes]
        if asked is None:
            return [0] * len(rows)
        if not chosen:
            return self._rest(rows, prices, ceil(self._prober.short_ms / prices.plain))
        if not hopes:
            self.weigher.begin(rows)
        return self._asking.only(rows, asked, chosen)

    def _go_on_drafting(self, prices: Prices, batch: int, unread: Sequence[int]) -> None:
        """Let the rule cut drafts short, in this round and those that stay like it."""
        self._bar = self._time.rate(prices, batch) * prices.draft
        self._steady = self._steadiness - 1 if max(unread, default=0) <= _SOON_READ else 0
        self._steadiness = min(self._steadiness + 1, _STEADIEST)

    def _rest(self, rows: Sequence[GoodputRow], prices: Prices, rounds: int) -> list[int]:
        """Return 0 for all; while the rows stay the same nothing is decided for ``rounds`` rounds, this one counted."""
        self._quiet = max(0, min(rounds, self._price_list.left(prices)) - 1)
        self._waits, self._steadiness = _COMING_AND_GOING, _STEADY
        return [0] * len(rows)

    def _weigh(
        self, rows: Sequence[GoodputRow], prices: Prices, rooms: Sequence[int], unread: Sequence[int]
    ) -> tuple[int, list[float]]:
        """Return gamma.max or 0, and the tokens that each row hopes of a first draft pass."""
        rate = self._time.rate(prices, self._batch)
        self._foresee(prices, len(rows), rate)
        hopes = self.weigher.begin(rows)
        self._held_back = 0 in rooms
        for i, behind in enumerate(unread):
            if behind and not self._pays(rows[i], hopes[i], rooms[i], rate * behind * self._costs.reading_ms):
                hopes[i], self._held_back = 0.0, True
        if 0 in rooms:
            hopes = [hope if room > 0 else 0.0 for hope, room in zip(hopes, rooms, strict=True)]
        self._jump = rate * prices.jump(len(rows))
        self._entry = rate * (prices.begin + prices.draft) / self._beginning.hopeful + self._jump
        return (self._maximum if sum(hopes) > self._entry else 0), hopes

    def _foresee(self, prices: Prices, rows: int, rate: float) -> None:
        """Work out what may yet be won, where prices or what is known of the draft are not what they were then. Each
        row pays whole passes: all win less by sharing them than the sum of what each would by going on."""
        one, judged = rate * prices.draft, self.weigher.judged
        if self._foreseen[0] == rows and judged < self._foreseen[1] and abs(one / self._foreseen[2] - 1) < _MOVED:
            return
        self._foreseen = rows, judged + _REFRESH, one
        self.weigher.foresee([rate * ms for ms in prices.by_depth(rows, self.weigher.depth)], one)

    def _pays(self, row: GoodputRow, hope: float, room: int, reading: float) -> bool:
        """Return whether drafting for the rest of a row's text wins more tokens than the drafter's reading up costs.

        What it wins with each token to come is 1 − 1 ÷ speedup, where there is speculation; at first, what is hoped of
        one draft pass. A text is taken to end where texts usually do.
        """
        left = min(room, max(self._length - row.emitted, self._length / 2))
        return max(hope / (1 + hope), 1 - 1 / self._time.speedup) * left > reading

    def _settle(self, batch: int) -> None:
        """Learn from the last round."""
        seen, prices = self.weigher.take_tally(), self._prices
        self._prober.settle(seen.rounds)
        if seen.rows and prices:
            self._time.saw(seen, prices, self._batch)
        if seen.passes:
            self._changed = True
            self._price_list.saw(self._batch, seen.begun, seen.passes)
        self._batch = batch

    def _notice_changes(self, rows: Sequence[GoodputRow]) -> None:
        """Note how long the requests that left the batch were, and give their lines to those that came."""
        if rows == self._rows:
            return
        self._changed = True
        here, there = set(rows), set(self._rows)
        gone = [row for row in self._rows if row not in here]
        for row in gone:
            self._length = nearer(self._length, row.emitted)
        self.weigher.loaded(gone, [row for row in rows if row not in there])
        self._rows = list(rows)
