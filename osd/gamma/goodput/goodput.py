"""The drafts of a whole batch, sized together for the most tokens a second. osd's own rule (docs/gamma.md).

    λ    tokens a millisecond that decoding makes now: the price of time (Dinkelbach)
    S    the chance that a row's draft is accepted up to here
    G_k  what k further draft passes win:  Σ over rows and passes of S − λ (k draft passes + verifying their tokens)

Before the round, and after every pass, the k with the largest G decides whether there is another pass; 0 is not to
draft. Each row keeps as many of its newest tokens as pay for being verified. What may be lost by being wrong is bounded
by a credit, which a small share of all tokens fills.
"""

from __future__ import annotations

from collections.abc import Sequence

from osd.gamma.base import CostModel, DraftDecision, Observation, Signal
from osd.gamma.goodput.acceptance import Acceptance, Effect, Look, Looks, expected, log_odds
from osd.gamma.goodput.prices import PriceList, Prices
from storage.settings.drafting import GoodputSettings

TRIES = 8
"""Tries for which a prompt is read."""
RESTS, FAR = 4, 0.5
"""Rounds for which a plan of no drafts holds, where none would pay at this share of the price either."""
JUDGED = 0.25
"""Variance, in log-odds, of an acceptance that was judged on recorded texts."""
DECLINE, LAST, ON = DraftDecision.DECLINE, DraftDecision.LAST, DraftDecision.ON
_NO_TERM: Effect = [0.0, 0.0]


class GoodputRow:
    """One request."""

    __slots__ = ("before", "known", "last", "looks", "next_look", "rule", "survival", "terms")

    def __init__(self, rule: GoodputController) -> None:
        self.rule = rule
        """Who planned its round."""
        self.known = rule.acceptance
        """What is known of its tenant's drafts."""
        self.terms = rule.acceptance.request()
        self.last = -1
        """Its text's last token."""
        self.looks: list[Looks] = []
        """What the chances of this round's tokens came from."""
        self.next_look: Look = (rule.acceptance.first, 0.0, _NO_TERM, _NO_TERM)
        self.survival = self.before = 1.0
        """S, and S before the newest token."""

    def observe(self, seen: Observation) -> None:
        """Learn how the round went."""
        rule, known = self.rule, self.known
        rule.emitted += seen.accepted + 1
        rule.drafted += seen.drafted
        rule.passes = max(rule.passes, seen.drafted)  # no pass is told of where a proposer drafts: one a level
        if seen.text:
            self.last = seen.text[-1]
        if seen.drafted or self.looks:
            while len(self.looks) < seen.drafted:  # no pass told of this token: the chance before it is all there is
                before = self.next_look
                self.looks.append((before, None, None))
                mean, _ = before[0].look(*before[1:])
                self.next_look = known.then, mean, self.terms[0], _NO_TERM
            known.learn(self.looks, seen.drafted, seen.accepted, seen.chances)


class GoodputController:
    """See the module."""

    name: str = "goodput"
    signal: Signal = "peak_token"

    @property
    def reads_head(self) -> bool:
        """Whether the planner gives what an acceptance head says beside the signal."""
        return self._set.head

    def __init__(self, costs: CostModel, *, maximum: int, settings: GoodputSettings) -> None:
        self._costs, self._maximum, self._set = costs, maximum, settings
        self.acceptance = Acceptance(settings.spread, settings.memory)
        self.emitted = self.drafted = self.passes = 0
        """Tokens of the round that is being observed, and its draft passes."""
        self.credit = settings.stake
        """Tokens that may be lost."""
        self._gained = self._spent = 1.0
        self.speedup = 1.0
        """λ ÷ what plain decoding makes, lately; never below 1, which not drafting achieves."""
        self._price_list = PriceList(costs, maximum)
        self._prices: Prices | None = None
        """This round's; None while nothing was timed."""
        self._batch = self._kept = self._cap = 0
        """Rows, tokens kept for verification and most passes of this round."""
        self._rows, self._rounds, self._rests, self._before = list[GoodputRow](), 0, 0, 0
        """Those planned, rounds since then, and rounds for which that holds; rounds of the plan before."""
        self._trying = False
        """Whether rows draft though that does not pay."""
        self._reading = 0.0
        """What the drafter reads."""

    def begin_after(self, other: GoodputController) -> None:
        """Go on after another whose target has moved: what it believed is doubted, and tries are not granted anew."""
        self.acceptance.begin_after(other.acceptance)
        self.credit = min(self.credit, other.credit)

    def expect(self, alpha: float) -> None:
        """Begin with the acceptance at which the draft was judged."""
        self.acceptance.first.mean, self.acceptance.first.var = log_odds(alpha), JUDGED

    @property
    def joint(self) -> CostModel:
        """What rows have in common that are planned together, whosever they are; see
        :class:`osd.gamma.planner.GammaPlanner`."""
        return self._costs

    def start(self) -> GoodputRow:
        """Return the state of a new request, which is taken to be like the others."""
        return GoodputRow(self)

    def plan(
        self, rows: Sequence[GoodputRow], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()
    ) -> list[int]:
        """Return each row's γ: the most that it may draft, to be cut short in the round, or 0."""
        if self._rounds < self._rests and batch == self._batch and list(rows) == self._rows:
            self._rounds += 1
            return [0] * len(rows)
        self._settle()
        self._batch, self.passes, self._kept, self._reading = batch, 0, 0, 0.0
        self._before, self._rows, self._rounds, self._rests = self._rounds, list(rows), 1, 0
        self._trying = False
        unread = unread or [0] * len(rows)
        prices = self._prices = self._price_list.of(batch)
        first = [self._begin(row) for row in rows]
        if prices is None:
            self._cap = 1  # nothing was timed: one token of one row tells what drafting takes
            chosen = [i for i, room in enumerate(rooms) if room > 0][:1]
        else:
            chosen = self._choose(prices, rows, first, rooms, unread)
            self._reading = prices.read * sum([unread[i] for i in chosen])
        self._rests = 0 if chosen else self._rests
        return [min(self._cap, room) if i in chosen else 0 for i, room in enumerate(rooms)]

    def _begin(self, row: GoodputRow) -> float:
        """Begin a row's round; return the chance of its first token."""
        first = row.known.first
        row.rule, row.looks, row.survival, row.before = self, [], 1.0, 1.0
        row.next_look = first, 0.0, row.terms[0], first.context(row.last)
        return expected(*first.look(*row.next_look[1:]))

    def _ahead(self, row: GoodputRow, chance: float) -> tuple[float, float]:
        """Return the chance of a row's first token, and by how much it falls with each further one."""
        mean, _ = row.known.first.look(*row.next_look[1:])
        return chance, expected(*row.known.then.look(mean, row.terms[0], _NO_TERM))

    def _choose(
        self, prices: Prices, rows: Sequence[GoodputRow], first: Sequence[float], rooms: Sequence[int],
        unread: Sequence[int],
    ) -> list[int]:  # fmt: skip
        """Return the rows that draft, and set the round's most passes."""
        able = who = [i for i, room in enumerate(rooms) if room > 0]
        before = [self._ahead(rows[i], first[i]) for i in who] if self._may_pay(prices, [first[i] for i in who]) else []
        if not self._best(prices, before, self.speedup)[0]:
            self._rests = 0 if self._best(prices, before, FAR * self.speedup)[0] else RESTS
            return self._explore(prices, rows, able, first, unread)
        if prices.read:
            who, before = self._worth_reading(prices, who, before, rooms, unread)
            if not self._best(prices, before, self.speedup)[0]:
                return self._explore(prices, rows, able, first, unread)
        count, read = len(who), prices.read * sum([unread[i] for i in who])
        self._cap = self._affordable(prices, count, read)
        if not self._cap:
            self._cap = 1
            return self._few(prices, who, unread, self.credit)
        return who

    def _worth_reading(
        self, prices: Prices, who: Sequence[int], before: Sequence[tuple[float, float]], rooms: Sequence[int],
        unread: Sequence[int],
    ) -> tuple[list[int], list[tuple[float, float]]]:  # fmt: skip
        """Return those of the rows that win more than the drafter's reading up costs; who has least to read first."""
        late = [
            (i, each) for i, each in zip(who, before, strict=True)
            if not unread[i] or self._pays_reading(prices, each, rooms[i], unread[i])
        ]  # fmt: skip
        late.sort(key=lambda each: unread[each[0]])
        return [i for i, _ in late], [each for _, each in late]

    def _may_pay(self, prices: Prices, first: Sequence[float]) -> bool:
        """Return whether a draft pass could pay: no later token is likelier than the first."""
        return sum(first) > self.speedup * self._batch * prices.least

    def _affordable(self, prices: Prices, rows: int, read: float) -> int:
        """Return the passes of so many rows that the credit covers."""
        passes = 0
        while passes < self._maximum and self._risk(prices, passes + 1, rows, read) <= self.credit:
            passes += 1
        return passes

    def _risk(self, prices: Prices, passes: int, rows: int, read: float) -> float:
        """Return the tokens that plain decoding would make in the time of a draft."""
        return self._batch * (prices.draft[passes] + prices.verify[rows * passes] + read)

    def _few(self, prices: Prices, who: Sequence[int], unread: Sequence[int], most: float) -> list[int]:
        """Return the first of ``who`` that may draft a token each without risking more than so many tokens."""
        read = 0.0
        for count, i in enumerate(who):
            read += prices.read * unread[i]
            if self._risk(prices, 1, count + 1, read) > most:
                return list(who[:count])
        return list(who)

    def _pays_reading(self, prices: Prices, chances: tuple[float, float], room: int, behind: int) -> bool:
        """Return whether what a row may win over the rest of its text exceeds what the drafter's reading up costs."""
        _, worth = self._best(prices, [chances], self.speedup, share=self._batch)
        first, then = chances
        return worth * room / (1 + first / (1 - first * then)) > self._batch * self.speedup * prices.read * behind

    def _explore(
        self, prices: Prices, rows: Sequence[GoodputRow], who: list[int], first: Sequence[float], unread: Sequence[int]
    ) -> list[int]:
        """Return the rows that draft a token though that does not pay, for what drafts are worth may be thought wrongly
        of, and may change. Half of the stake and half of the share buy tries."""
        for row in rows:
            row.known.first.fade(self._before / self._set.stale)
        self._cap, self._trying = 1, True
        most, one = self.credit - self._set.stake / 2, self._risk(prices, 1, 1, 0.0)
        if one > most:
            return []
        who = sorted(who, key=lambda i: (unread[i], -first[i]))
        if who and self._batch * prices.read * unread[who[0]] > max(0.0, most - TRIES * one):
            return []  # what is read for a try is to serve several
        return self._few(prices, who, unread, most)

    def _best(
        self, prices: Prices, rows: Sequence[tuple[float, float]], rate: float, done: int = 0, kept: int = 0,
        share: int = 1,
    ) -> tuple[int, float]:  # fmt: skip
        """Return the k with the largest G_k, and that, in tokens; 0 where no k wins anything.

        ``rows``: of each that drafts on, the chance that its next token is accepted with all before it, and by which it
        falls with each further one; ``rate``: λ ÷ plain decoding's; ``done``, ``kept``: passes so far, and tokens that
        are verified in any case; ``share``: rows that share the draft passes with each of these.
        """
        rate *= self._batch
        draft, verify, count = prices.draft, prices.verify, len(rows)
        chances = [chance for chance, _ in rows]
        falls = [fall for _, fall in rows]
        tokens, best, at = 0.0, 0.0, 0
        for k in range(1, self._maximum - done + 1):
            more = sum(chances)
            if more < rate * prices.least / share:
                break  # nor will a later pass, which brings less
            tokens += more
            won = tokens - rate * ((draft[done + k] - draft[done]) / share + verify[kept + count * k] - verify[kept])
            if won > best:
                best, at = won, k
            chances = [chance * fall for chance, fall in zip(chances, falls, strict=True)]
        return at, best

    def should_continue(
        self, rows: Sequence[GoodputRow], drafted: int, signals: Sequence[tuple[float, int]],
        estimates: Sequence[float] = (),
    ) -> list[DraftDecision]:  # fmt: skip
        """Keep the tokens that pay for being verified; go on together while another pass wins more. ``estimates``: what
        an acceptance head says of each row's token before, NaN where none does."""
        self.passes = drafted
        for row, estimate in zip(rows, estimates, strict=False):
            self._hear(row, estimate)
        falls = [self._look(row, peak, token) for row, (peak, token) in zip(rows, signals, strict=True)]
        prices = self._prices
        if prices is None:
            return [LAST] * len(rows)
        chances = [row.survival for row in rows]
        order = sorted(range(len(rows)), key=chances.__getitem__, reverse=True)
        rate, kept, verify = self.speedup * self._batch, self._kept, prices.verify
        tokens, won, keep = 0.0, 0.0, 0
        for n, i in enumerate(order, 1):
            tokens += chances[i]
            if (worth := tokens - rate * (verify[kept + n] - verify[kept])) > won:
                won, keep = worth, n
        on = self._going_on(prices, order, chances, falls, won) if drafted < self._cap else 0
        keep = len(order) if self._trying else max(keep, on)  # a try is to be judged
        self._kept += keep
        answers = [DECLINE] * len(rows)
        for n, i in enumerate(order[:keep]):
            answers[i] = ON if n < on else LAST
        return answers

    def _going_on(
        self, prices: Prices, order: Sequence[int], chances: Sequence[float], falls: Sequence[float], won: float
    ) -> int:
        """Return how many rows, the likeliest first, draft on: 0 where stopping with ``won`` tokens is better."""
        rate, kept, verify, done = self.speedup * self._batch, self._kept, prices.verify, self.passes
        count = len(order)
        price = rate * (verify[kept + 2 * count] - verify[kept + count]) / count
        ahead = [(chances[i] * falls[i], falls[i]) for i in order]
        on = max(1, sum([chance > price for chance, _ in ahead]))
        _, more = self._best(prices, ahead[:on], self.speedup, done, kept + on)
        sure = sum([chances[i] for i in order[:on]]) - rate * (verify[kept + on] - verify[kept])
        return on if more > 0 and sure + more > won else 0

    def _hear(self, row: GoodputRow, estimate: float) -> None:
        """Take an acceptance head's word on the newest token, beside what is thought of it."""
        after = row.looks[-1][1] if row.looks else None
        if after is None or estimate != estimate:
            return
        mean, _ = after[0].look(*after[1:])
        look = row.known.told, log_odds(estimate) - mean, [mean, 0.0], _NO_TERM
        row.survival = row.before * expected(*look[0].look(*look[1:]))
        row.looks[-1] = row.looks[-1][0], after, look

    def _look(self, row: GoodputRow, peak: float, token: int) -> float:
        """Enter what a pass told of a row; return the chance of the token after, where this one is accepted."""
        known = row.known
        z, own = log_odds(peak), row.terms[1]
        beside = known.after.context(token)
        mean, var = known.after.look(z, own, beside)
        row.before = row.survival
        row.survival *= expected(mean, var)
        row.looks.append((row.next_look, (known.after, z, own, beside), None))
        beside = known.then.context(token)
        row.next_look = known.then, mean, row.terms[0], beside
        return expected(*known.then.look(mean, row.terms[0], beside))

    def _settle(self) -> None:
        """Learn what the rounds since the last plan brought and took, in tokens of plain decoding."""
        emitted, drafted, prices, rounds = self.emitted, self.drafted, self._prices, self._rounds
        self.emitted = self.drafted = 0
        batch, given = self._batch, self._set
        if not emitted or prices is None:
            return
        drafting = prices.draft[min(self.passes, self._maximum)] + prices.verify[min(drafted, len(prices.verify) - 1)]
        took, keep = rounds + drafting, (1 - 1 / given.patience) ** rounds
        whole = emitted + (batch - len(self._rows)) * rounds  # rows of other rules wait too; they count as plain
        self._gained = keep * self._gained + (1 - keep) * whole / (batch * rounds)
        self._spent = keep * self._spent + (1 - keep) * took / rounds
        self.speedup = max(1.0, self._gained / self._spent)
        share = given.share / 2 if self._trying else given.share
        won = whole - batch * (took + self._reading) + share * emitted
        self.credit = min(self.credit + won, 4 * (given.stake + batch))
