"""Makes the numbers that :mod:`osd.gamma.goodput.weighing` works on: before anything is known."""

from __future__ import annotations

from osd.gamma.goodput.book import (
    ACCEPTED,
    BINS,
    FOLLOWS,
    JUDGED,
    LINES,
    PRIOR,
    PRIORS,
    SHARED,
    SHARED_PRIOR,
    START,
    USUAL,
    USUAL_PRIOR,
    Line,
    guess_of,
    middle_of,
)
from osd.gamma.goodput.contexts import Contexts, peak_of
from osd.gamma.goodput.held import VERDICT, Held
from osd.gamma.goodput.weighing import FORESEEN, GRID, HEAD, LEANS, PER_PASS, ROW_PRIOR, SURVIVAL

_WELCOMED = [1.0, float(START), 0.0, 1.0, *[ROW_PRIOR] * (HEAD - LEANS)]
"""S, the bin before, passes, odds and what they come from."""


def new_held(rows: int, depth: int, contexts: Contexts) -> Held:
    """Return the tuple for :func:`osd.gamma.goodput.held.parts`, for so many rows and drafts of ``depth`` tokens."""
    return new_book(), new_outlook(), [0.0] * (depth + 1), contexts, *new_batch(rows, depth)


def new_batch(rows: int, depth: int) -> Held:
    """Return the last five parts, which have a line for each row: desk, places, peaks, verdicts, answers."""
    peaks, verdicts = [peak_of(0.0) for _ in range(rows)], [[0.0] * VERDICT for _ in range(rows)]
    return new_desk(rows, depth), [0.0] * rows, peaks, verdicts, [0.0] * rows


def new_book() -> list[list[float]]:
    """Return a book as if each peak were the truth, and anything might follow."""
    book = [[0.0] * (BINS + 1) for _ in range(LINES)]
    book[ACCEPTED] = [PRIOR * middle_of(i) for i in range(BINS)] + [0.0]
    book[JUDGED] = [PRIOR] * (BINS + 1)
    book[PRIORS] = [PRIOR] * (BINS + 1)
    book[SHARED][: USUAL + 2] = [SHARED_PRIOR] * 4 + [1.0, USUAL_PRIOR / 2, USUAL_PRIOR]
    for before in range(BINS + 1):
        book[FOLLOWS + before] = [guess_of(before, i) for i in range(BINS)] + [0.0]
    return book


def new_desk(rows: int, depth: int) -> list[list[float]]:
    """Return a desk for so many rows, and drafts of so many tokens."""
    desk = [[0.0] * (HEAD + PER_PASS * depth) for _ in range(rows)]
    for row in desk:
        welcome(row)
    return desk


def new_outlook() -> list[list[list[float]]]:
    """Return an outlook in which nothing is to be won beyond a token."""
    return [[[0.0] * BINS for _ in range(GRID + 1)] for _ in range(FORESEEN)]


def welcome(row: Line) -> None:
    """Give a line of the desk to a new request, which is taken to be like the others."""
    row[SURVIVAL:HEAD] = _WELCOMED
