"""Makes the lines that :mod:`osd.gamma.weighing` works on, as lists: before anything is known."""

from __future__ import annotations

from osd.gamma.book import (
    ACCEPTED,
    BINS,
    FOLLOWS,
    JUDGED,
    LINES,
    PRIOR,
    PRIORS,
    SHARED,
    SHARED_PRIOR,
    Line,
    guess_of,
    middle_of,
)
from osd.gamma.weighing import AFTER, DRAFTED, FORESEEN, GRID, HEAD, LEANS, ODDS, PASSES, PER_PASS, ROW_PRIOR


def new_book() -> list[list[float]]:
    """As if each peak were the truth, and anything might follow."""
    book = [[0.0] * (BINS + 1) for _ in range(LINES)]
    book[ACCEPTED] = [PRIOR * middle_of(i) for i in range(BINS)] + [0.0]
    book[JUDGED] = [PRIOR] * (BINS + 1)
    book[PRIORS] = [PRIOR] * (BINS + 1)
    book[SHARED][:5] = [SHARED_PRIOR] * 4 + [1.0]
    for before in range(BINS + 1):
        book[FOLLOWS + before] = [guess_of(before, i) for i in range(BINS)] + [0.0]
    return book


def new_desk(rows: int, depth: int) -> list[list[float]]:
    """For so many rows, and drafts of so many tokens."""
    desk = [[0.0] * (HEAD + PER_PASS * depth) for _ in range(rows)]
    for row in desk:
        welcome(row)
    return desk


def new_outlook() -> list[list[list[float]]]:
    """Nothing is to be won beyond a token."""
    return [[[0.0] * BINS for _ in range(GRID + 1)] for _ in range(FORESEEN)]


def welcome(row: Line) -> None:
    """A new request takes this line; it leans neither way."""
    row[DRAFTED], row[PASSES], row[ODDS], row[AFTER] = 0.0, 0.0, 1.0, -1.0
    for i in range(4):
        row[LEANS + i] = ROW_PRIOR
