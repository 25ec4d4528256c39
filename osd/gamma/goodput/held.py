"""What goodput asks of :mod:`osd.gamma.goodput.weighing`, over all its numbers in one piece.

A call of compiled code costs what its arguments do, each array of them a microsecond where Python is cold: so all
numbers are held together, and one row alone, whose rounds are the shortest, is asked about with numbers.

    held      book, outlook, prices, contexts, desk, places, peaks, verdicts, answers: lists, or one array that
              :func:`parts` takes apart
    places    the lines on the desk of a batch's rows
    peaks     a line for each of them: the :data:`~osd.gamma.goodput.contexts.Peak` of its newest draft pass
    verdicts  a line for each that was judged: its place, tokens drafted, accepted, and of how many the chance is known
    answers   a number for each row that was asked about, in the order of ``places``
"""

from __future__ import annotations

from typing import Any

from osd.gamma.goodput.book import BINS, LINES, START
from osd.gamma.goodput.contexts import KINDS, PLACES, SLOTS
from osd.gamma.goodput.weighing import (
    FORESEEN,
    GRID,
    HEAD,
    PER_PASS,
    clear,
    foresee,
    hope,
    judge,
    odds_next,
    pays_from,
    weigh,
)

Held = Any
"""A tuple of lists, or a float64 array."""
DEPTH, ROWS, BEGIN = 0, 1, 2
"""Places in the array: tokens of a draft at most, lines of the desk, the first part."""
PEAK, VERDICT = 6, 4
"""Numbers of a line of ``peaks``, and of ``verdicts``."""


def parts(held: Held) -> Any:
    """Return the parts of a tuple, which it is; where this is compiled, :func:`cut` takes its place."""
    return held


def cut(held: Held) -> Any:
    """Return the same parts of an array, as views of it."""
    depth, rows = int(held[DEPTH]), int(held[ROWS])
    outlook = BEGIN + LINES * (BINS + 1)
    prices = outlook + FORESEEN * (GRID + 1) * BINS
    contexts = prices + depth + 1
    desk = contexts + KINDS * SLOTS * PLACES
    places = desk + rows * (HEAD + PER_PASS * depth)
    peaks = places + rows
    verdicts = peaks + rows * PEAK
    answers = verdicts + rows * VERDICT
    return (
        held[BEGIN:outlook].reshape((LINES, BINS + 1)),
        held[outlook:prices].reshape((FORESEEN, GRID + 1, BINS)),
        held[prices:contexts],
        held[contexts:desk].reshape((KINDS, SLOTS, PLACES)),
        held[desk:places].reshape((rows, HEAD + PER_PASS * depth)),
        held[places:peaks],
        held[peaks:verdicts].reshape((rows, PEAK)),
        held[verdicts:answers].reshape((rows, VERDICT)),
        held[answers : answers + rows],
    )


def look_ahead(held: Held, bar: float) -> None:
    """Work out what may yet be won, where another pass must bring more than ``bar``, in tokens."""
    book, outlook, prices, _, _, _, _, _, _ = parts(held)
    foresee(book, outlook, prices, bar)


def learn(held: Held, judged: int) -> None:
    """Learn the first ``judged`` of ``verdicts``, in order: see :func:`~osd.gamma.goodput.weighing.judge`."""
    book, _, _, contexts, desk, _, _, verdicts, _ = parts(held)
    for k in range(judged):
        line = verdicts[k]
        judge(book, contexts, desk[int(line[0])], int(line[1]), int(line[2]), int(line[3]))


def begin_alone(
    held: Held, place: int, third: int, second: int, last: int, drafted: int, taken: int, known: int
) -> float:
    """Learn the verdict on a lone row's last draft, if any; begin its round, and return its hope after these tokens."""
    book, outlook, prices, contexts, desk, _, _, _, _ = parts(held)
    row = desk[place]
    judge(book, contexts, row, drafted, taken, known)
    clear(row)
    return hope(book, row, prices, outlook, odds_next(book, contexts, START, third, second, last))


def begin(held: Held, judged: int, rows: int) -> None:
    """Learn so many verdicts; begin a round of the first ``rows`` of ``places``, whose hopes become ``answers``."""
    learn(held, judged)
    book, outlook, prices, _, desk, places, _, _, answers = parts(held)
    for k in range(rows):
        row = desk[int(places[k])]
        clear(row)
        # they draft and rest together, whatever each stands after
        answers[k] = hope(book, row, prices, outlook, 1.0)


def weigh_alone(
    held: Held, place: int, peak: float, third: int, second: int, last: int, token: int, bar: float
) -> float:
    """Return the answer to the round's only row after a draft pass."""
    book, outlook, prices, contexts, desk, places, peaks, _, answers = parts(held)
    places[0] = place
    peaks[0] = peak, float(third), float(second), float(last), float(token), -1.0
    weigh(book, contexts, desk, places, peaks, answers, 1, prices, outlook, bar, 0.0)
    return float(answers[0])


def weigh_together(held: Held, rows: int, bar: float, jump: float) -> None:
    """Answer the first ``rows`` of ``places`` after a draft pass over them."""
    book, outlook, prices, contexts, desk, places, peaks, _, answers = parts(held)
    # how long others go on, and share a pass, is not known, and so not what may be won beyond the next
    weigh(book, contexts, desk, places, peaks, answers, rows, prices, outlook[:0], bar, jump)


def pays_alone(held: Held, place: int, bar: float) -> float:
    """Return the odds from which on a lone row drafts: see :func:`~osd.gamma.goodput.weighing.pays_from`."""
    book, outlook, prices, _, desk, _, _, _, _ = parts(held)
    return pays_from(book, desk[place], prices, outlook, bar)


def odds_after(held: Held, third: int, second: int, last: int) -> float:
    """Return the odds of acceptance after these tokens ÷ those that are expected of a first draft pass."""
    book, _, _, contexts, _, _, _, _, _ = parts(held)
    return odds_next(book, contexts, START, third, second, last)
