"""Holds the numbers of :mod:`osd.gamma.goodput.weighing` for one engine's rows, in lists or, once it is compiled, in
arrays."""

from __future__ import annotations

from collections.abc import Sequence

from osd.gamma.base import DraftDecision
from osd.gamma.goodput import held, lines, weighing
from osd.gamma.goodput.compiled import COMPILER, PLAIN, Compiler, array, new_contexts
from osd.gamma.goodput.contexts import Peak
from osd.gamma.goodput.goodput_row import NOWHERE, GoodputRow, Tally

_ROWS = 8
"""Rows that there is room for at first."""
WORTH_COMPILING = 64
"""Rounds after which the compiler is asked for: loading it takes a second or two of a core, which so many rounds of
interpreted lines do not."""
_NO_VERDICT = (NOWHERE, 0, 0, 0)
_GOES = {weighing.DECLINE: DraftDecision.DECLINE, weighing.LAST: DraftDecision.LAST, weighing.ON: DraftDecision.ON}
_ALONE = ([DraftDecision.DECLINE], [DraftDecision.LAST], [DraftDecision.ON])
"""Answers for one row."""


class Weigher:
    """What is known of a draft, and the rows of a batch, each on a line of its own while it is there."""

    def __init__(self, depth: int, compiler: Compiler | None = COMPILER) -> None:
        """``depth``: drafted tokens of a round, at most. ``compiler``: None stays with the interpreter."""
        self.depth = depth
        self.tally = Tally()
        """The tally of the round that is being observed."""
        self.judged = 0
        """Tokens judged so far."""
        self._compiler, self._run = compiler, PLAIN
        self._chances = weighing.HEAD + weighing.KNOWN * depth
        self._placed: Sequence[GoodputRow] = ()
        """Rows whose lines the first ``_places`` name."""
        self._hold(lines.new_held(_ROWS, depth, new_contexts()))
        self._free = list(range(_ROWS))
        self._begun = 0
        """Rows of this round."""
        self._verdicts: list[tuple[int, int, int, int]] = []
        """Verdicts on the last drafts, learned from when the next round begins: see :mod:`osd.gamma.goodput.held`."""
        self._interpreted = 0
        """Rounds that the interpreter ran."""

    def start(self) -> GoodputRow:
        """Return the state of a new request, which is taken to be like the others."""
        return GoodputRow(self)

    def take_tally(self) -> Tally:
        """Return the last round's tally and begin another."""
        seen, self.tally = self.tally, Tally()
        return seen

    def loaded(self, gone: Sequence[GoodputRow], come: Sequence[GoodputRow]) -> None:
        """Give the lines of rows that left to those that came, once the verdicts on their last drafts are learned."""
        self._learn()
        for row in gone:
            self._free.append(row.place)
            row.place = NOWHERE
        while len(self._free) < len(come):
            self._grow()
        for row in come:
            row.place = self._free.pop()
            lines.welcome(self._desk[row.place])
        self._placed = ()

    def verdict(self, place: int, drafted: int, accepted: int, chances: Sequence[float] = ()) -> None:
        """Note the verdict on a row's draft, to be learned. ``chances``: see :class:`osd.gamma.base.Observation`."""
        if place != NOWHERE:
            known = min(len(chances), self.depth)
            if known:
                self._desk[place][self._chances : self._chances + known] = chances[:known]
            if len(self._verdicts) == len(self._heard):
                self._learn()
            self._verdicts.append((place, drafted, accepted, known))
            self.judged += accepted + 1 if accepted < drafted else drafted

    def foresee(self, prices: Sequence[float], bar: float) -> None:
        """Set what verifying a row's d-th token costs, ``prices[d - 1]``, and a draft pass, ``bar``, in tokens."""
        self._prices[1:] = prices
        self._run.look_ahead(self._held, bar)

    def begin(self, rows: Sequence[GoodputRow]) -> list[float]:
        """Begin a round; return what each row hopes of a first draft pass and of what may follow, in tokens."""
        if self._run is PLAIN and self._compiler:
            self._hurry(self._compiler)
        count = self._begun = len(rows)
        if count == 1:
            return [self._begin_alone(rows[0])]
        self._put_places(rows)
        self._run.begin(self._held, self._put_verdicts(), count)
        return self._answered(count)

    def weigh(
        self, rows: Sequence[GoodputRow], peaks: Sequence[Peak], bar: float, jump: float = 0.0
    ) -> list[DraftDecision]:
        """Return how each row goes on after a draft pass of these: it keeps its token while that is worth what
        verifying it costs, all go on while they hope for more than ``bar``; all keep and go on where it is below 0. Of
        several rows none keeps its token where all that they win together is less than ``jump``."""
        if self._begun == 1:
            value, third, second, last, token, declined = peaks[0]
            alone = self._run.weigh_alone(self._held, rows[0].place, value, third, second, last, token, bar)
            if not alone:
                rows[0].declined = declined
            return _ALONE[int(alone)]
        answers = self._weigh_together(rows, peaks, bar, jump)
        if weighing.DECLINE in answers:
            for row, peak, answer in zip(rows, peaks, answers, strict=True):
                if not answer:
                    row.declined = peak[-1]
        return [_GOES[answer] for answer in answers]

    def pays_from(self, row: GoodputRow, bar: float) -> float:
        """Return the :meth:`odds_after`, 1 or more, for which a row that begins a round hopes for more than ``bar``."""
        return self._run.pays_alone(self._held, row.place, bar)

    def odds_after(self, row: GoodputRow) -> float:
        """Return the odds of acceptance after a row's last tokens ÷ those expected of a first draft pass."""
        return self._run.odds_after(self._held, *row.before)

    def odds(self, row: GoodputRow) -> float:
        """Return a row's odds of acceptance ÷ those of all requests, when the round was begun."""
        return float(self._desk[row.place][weighing.ODDS])

    def _begin_alone(self, row: GoodputRow) -> float:
        """Begin the round of a lone row, telling the verdict on its last draft in the same call; return its hope."""
        self._placed = ()
        if len(self._verdicts) != 1 or self._verdicts[0][0] != row.place:
            self._learn()
        _, *verdict = self._verdicts.pop() if self._verdicts else _NO_VERDICT
        return self._run.begin_alone(self._held, row.place, *row.before, *verdict)

    def _learn(self) -> None:
        if self._verdicts:
            self._run.learn(self._held, self._put_verdicts())

    def _put_verdicts(self) -> int:
        """Move the verdicts to where they are learned from; return how many there are."""
        judged = len(self._verdicts)
        if judged:
            self._heard[:judged] = self._verdicts
            self._verdicts.clear()
        return judged

    def _put_places(self, rows: Sequence[GoodputRow]) -> None:
        """Put the rows' places where a batch is read from; nearly always they are there."""
        if rows != self._placed:
            self._places[: len(rows)] = [row.place for row in rows]
            self._placed = list(rows)

    def _weigh_together(
        self, rows: Sequence[GoodputRow], peaks: Sequence[Peak], bar: float, jump: float
    ) -> list[float]:
        count = len(rows)
        self._put_places(rows)
        self._peaks[:count] = peaks
        self._run.weigh_together(self._held, count, bar, jump)
        return self._answered(count)

    def _answered(self, count: int) -> list[float]:
        """Return what so many rows were answered."""
        answers = self._answers[:count]
        numbers: list[float] = answers if self._run is PLAIN else answers.tolist()
        return numbers

    def _hold(self, numbers: held.Held) -> None:
        """Hold everything in these numbers from now on, a tuple or an array."""
        self._held = numbers
        self._parts = numbers if isinstance(numbers, tuple) else held.cut(numbers)
        _, _, self._prices, _, self._desk, self._places, self._peaks, self._heard, self._answers = self._parts
        self._placed = ()

    def _grow(self) -> None:
        """Double the room for rows; rare, so it goes by way of lists."""
        before = len(self._desk)
        desk, *rest = lines.new_batch(2 * before, self.depth)
        desk[:before] = [list(line) for line in self._desk]
        self._free += range(before, 2 * before)
        numbers = (*self._parts[:4], desk, *rest)
        self._hold(numbers if self._run is PLAIN else array(numbers))

    def _hurry(self, compiler: Compiler) -> None:
        """Have it compiled once it is worth that, and from then on run what was compiled."""
        self._interpreted += 1
        if self._interpreted == WORTH_COMPILING:
            compiler.start()
        if compiler.ready:
            self._run = compiler.ready
            self._hold(array(self._parts))
