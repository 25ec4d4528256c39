"""Holds the numbers of :mod:`osd.gamma.weighing` for one engine's rows, in lists or, once it is compiled, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osd.gamma import lines, weighing
from osd.gamma.base import Go
from osd.gamma.book import HALVED, TICKS
from osd.gamma.compiled import COMPILER, PLAIN, Compiler, array, new_contexts, whole
from osd.gamma.contexts import NO_CONTEXT, Peak, odds_after
from osd.gamma.goodput_row import NOWHERE, GoodputRow, Tally

_ROWS = 8
"""That there is room for at first."""
WORTH_COMPILING = 64
"""Rounds after which the compiler is asked for: loading it takes a second or two of a core, which so many rounds of
interpreted lines do not."""
_GOES = (Go.DECLINE, Go.LAST, Go.ON)
_ALONE = ([Go.DECLINE], [Go.LAST], [Go.ON])
"""Answers for one row."""


class Weigher:
    """What is known of a draft, and the rows of a batch, each on a line of its own while it is there."""

    def __init__(self, depth: int, compiler: Compiler | None = COMPILER) -> None:
        """``depth``: drafted tokens of a round, at most. ``compiler``: None stays with the interpreter."""
        self.depth = depth
        self.tally = Tally()
        """Of the round that is being observed."""
        self.judged = 0
        """Tokens judged so far."""
        self._compiler, self._run = compiler, PLAIN
        self._book: Any = lines.new_book()
        self._desk: Any = lines.new_desk(_ROWS, depth)
        self._places: Any = [0] * _ROWS
        self._peaks: Any = _no_peaks(_ROWS)
        self._contexts: Any = new_contexts()
        self._prices: Any = [0.0] * (depth + 1)
        self._outlook: Any = lines.new_outlook()
        self._free = list(range(_ROWS))
        self._begun = 0
        """Rows of this round, whose lines the first ``_places`` name."""
        self._interpreted = 0
        """Rounds."""

    def start(self) -> GoodputRow:
        """A new request, which leans neither way."""
        return GoodputRow(self)

    def take_tally(self) -> Tally:
        """Of the last round; another is begun."""
        seen, self.tally = self.tally, Tally()
        return seen

    def seat(self, gone: Sequence[GoodputRow], come: Sequence[GoodputRow]) -> None:
        """Rows that left give their lines to those that came, once the verdicts on their last drafts are learned."""
        if gone:
            self._run.begin(self._book, self._contexts, self._desk, self._places, 0, self._prices, self._outlook)
        for row in gone:
            self._free.append(row.place)
            row.place = NOWHERE
        while len(self._free) < len(come):
            self._grow()
        for row in come:
            row.place = self._free.pop()
            lines.welcome(self._desk[row.place])

    def verdict(self, place: int, drafted: int, accepted: int) -> None:
        """On a row's draft; it is learned from when the next round begins."""
        if place != NOWHERE:
            line = self._desk[place]
            line[weighing.DRAFTED], line[weighing.TAKEN] = drafted, accepted
            self.judged += accepted + 1 if accepted < drafted else drafted

    def foresee(self, prices: Sequence[float], bar: float) -> None:
        """From now on verifying a row's d-th token costs ``prices[d - 1]``, up to its depth, and a draft pass ``bar`` a
        row, in tokens."""
        self._prices[1:] = prices
        self._run.foresee(self._book, self._outlook, self._prices, bar)

    def begin(self, rows: Sequence[GoodputRow]) -> list[float]:
        """A round: what each row hopes of a first draft pass, and of what may follow."""
        if self._run is PLAIN and self._compiler:
            self._hurry(self._compiler)
        count = self._begun = len(rows)
        for k, row in enumerate(rows):
            self._places[k] = row.place
        if count == 1:
            self._desk[rows[0].place][weighing.AFTER] = rows[0].after
        hopes = self._run.begin(
            self._book, self._contexts, self._desk, self._places, count, self._prices, self._outlook
        )  # fmt: skip
        if count == 1:
            return [hopes]
        return [float(self._desk[row.place][weighing.HOPE]) for row in rows]

    def weigh(self, rows: Sequence[GoodputRow], peaks: Sequence[float], bar: float) -> list[Go]:
        """After a draft pass of these rows of the round: a row keeps its token while that is worth what verifying it
        costs, all go on while they hope for more than ``bar``; all keep and go on where it is below 0."""
        count = len(rows)
        if count != self._begun:
            self._begun = 0
            for k in range(count):
                self._places[k] = rows[k].place
        for k, peak in enumerate(peaks):
            line = self._peaks[k]
            line[0] = peak
            line[1], line[2] = peak.slots if isinstance(peak, Peak) else NO_CONTEXT
        alone = self._begun == 1  # else how long the others go on, and share a pass, is not known
        outlook = self._outlook if alone else self._outlook[:0]
        first = self._run.weigh(
            self._book, self._contexts, self._desk, self._places, self._peaks, count, self._prices, outlook, bar
        )  # fmt: skip
        if count > 1:
            answers = [_GOES[int(self._desk[row.place][weighing.ANSWER])] for row in rows]
        else:
            answers = _ALONE[int(first)]
        for row, peak, go in zip(rows, peaks, answers, strict=True):
            if not go and isinstance(peak, Peak):
                row.declined = peak.token
        return answers

    def pays_from(self, row: GoodputRow, bar: float) -> float:
        """What :meth:`odds_after` a row's last token must be for it to hope for more than ``bar``, if it has just begun
        a round; 1 at least."""
        return self._run.pays_from(self._book, self._desk[row.place], self._prices, self._outlook, bar)

    def odds_after(self, row: GoodputRow) -> float:
        """The odds of acceptance after a row's last token ÷ those that peaks give."""
        return odds_after(self._contexts, row.after, self._book[TICKS][HALVED])

    def odds(self, row: GoodputRow) -> float:
        """A row's odds of acceptance ÷ those of all requests, when the round was begun."""
        return float(self._desk[row.place][weighing.ODDS])

    def _grow(self) -> None:
        """Twice the room. Rare, so it goes by way of lists."""
        before = len(self._desk)
        self._desk = [list(line) for line in self._desk] + lines.new_desk(before, self.depth)
        self._places, self._peaks = [0] * (2 * before), _no_peaks(2 * before)
        self._free += range(before, 2 * before)
        if self._run is not PLAIN:
            self._arrays()

    def _hurry(self, compiler: Compiler) -> None:
        """Have it compiled once it is worth that, and from then on run what was compiled."""
        self._interpreted += 1
        if self._interpreted == WORTH_COMPILING:
            compiler.start()
        if compiler.ready:
            self._run, self._book = compiler.ready, array(self._book)
            self._prices, self._outlook = array(self._prices), array(self._outlook)
            self._arrays()

    def _arrays(self) -> None:
        self._desk, self._places, self._peaks = array(self._desk), whole(self._places), array(self._peaks)


def _no_peaks(rows: int) -> list[list[float]]:
    return [[0.0, *NO_CONTEXT] for _ in range(rows)]
