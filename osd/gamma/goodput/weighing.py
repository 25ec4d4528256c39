"""The arithmetic of goodput, over numbers alone: what a draft's peaks are worth, and whether another pass is.

Written so that it runs in two ways, with the same answers: over lists by the interpreter, over arrays once Numba has
compiled it (:mod:`osd.gamma.goodput.held`, and :mod:`osd.gamma.goodput.compiled`). Python between two draft passes is
cold: it costs five times what it measures warm.

    book      what is known of the draft (:mod:`osd.gamma.goodput.book`)
    contexts  after which tokens it is right (:mod:`osd.gamma.goodput.contexts`)
    desk      a line for each row of this round: S so far, bins, chances and contexts of its passes
    answers   what was last asked of the rows of a batch, a number each: what they hope, or how they go on
    prices    θ_d, what verifying a row's d-th token costs, in tokens; from 1 on
    outlook   U_d(S, bin): what may yet be won after d tokens, by d, S and the last token's bin

Derivation: docs/goodput.md.
"""

from __future__ import annotations

from math import inf
from typing import Any

from osd.gamma.goodput.book import (
    BINS,
    CHANCES,
    FRESH,
    HALVED,
    START,
    TICKS,
    WEIGHTS,
    Line,
    Lines,
    bin_of,
    chance_of,
    expect,
    lean,
    leaning,
    passed,
    saw,
    usual,
)
from osd.gamma.goodput.contexts import Contexts, chance_ahead, odds_beside, saw_at

SURVIVAL, LINE, PASSES, ODDS, LEANS, HEAD = 0, 1, 2, 3, 4, 8
"""Places on the desk. LEANS: tokens accepted, rejected, expected to be and not; ODDS: what they come to. From HEAD on
passes' bins, their chances, the tokens around them, and from KNOWN on how often a token drawn there is accepted, where
the verdict says that."""
PER_PASS, KNOWN = 7, 6
ROW_PRIOR = 3.0
"""Accepted and rejected tokens that "this request is like the others" counts as."""
ROW_KEEPS = 0.97
"""What a row keeps of its own history with each judged token."""
DECLINE, LAST, ON = 0.0, 1.0, 2.0
FORESEEN = 3
"""Tokens of a draft after which it is known what may yet be won; later ones are weighed one by one."""
GRID = 4
"""Parts of S between which U is straight."""
ODDS_TRIED = 16.0
"""The best context that is thought of."""
_SURE = 0.999
"""No expectation is surer."""


def beyond(outlook: Any, depth: int, survival: float, peak_bin: int) -> float:
    """Return U_d(S, bin), in tokens; 0 where it is not known."""
    if depth > len(outlook):
        return 0.0
    level, at = outlook[depth - 1], survival * GRID
    low = min(int(at), GRID - 1)
    here, there = level[low][peak_bin], level[low + 1][peak_bin]
    return float(here + (at - low) * (there - here))


def brings(book: Lines, before: int, survival: float, odds: float, depth: int, prices: Line, outlook: Any) -> float:
    """Return E max(0, S p − θ_d + U_d(S p, bin)): what a pass brings that finds a row's d-th token after one of the bin
    ``before``, and what may follow, less what verifying them costs; the row may still decline."""
    weights, chances = book[WEIGHTS + before], book[CHANCES + before]
    price, worth = prices[min(depth, len(prices) - 1)], 0.0
    for i in range(BINS):
        if weights[i] > 0.0:
            then = survival * leaning(odds, chances[i])
            gain = then - price + beyond(outlook, depth, then, i)
            if gain > 0.0:
                worth += weights[i] * gain
    return worth


def foresee(book: Lines, outlook: Any, prices: Line, bar: float) -> None:
    """Work out U_d(S, b) = max(0, f_d(S, b) − ``bar``), the last d first."""
    for before in range(BINS):
        if book[FRESH][before] == 0.0:
            expect(book, before)
    for depth in range(len(outlook), 0, -1):
        for before in range(BINS):
            for k in range(1, GRID + 1):
                worth = brings(book, before, k / GRID, 1.0, depth + 1, prices, outlook)
                outlook[depth - 1][k][before] = max(0.0, worth - bar)


def hope(book: Lines, row: Line, prices: Line, outlook: Any, here: float) -> float:
    """Return f, the tokens that another draft pass brings a row whose odds are ``here`` times those of its peaks."""
    before = int(row[LINE])
    if book[FRESH][before] == 0.0:
        expect(book, before)
    return brings(book, before, row[SURVIVAL], here * row[ODDS], int(row[PASSES]) + 1, prices, outlook)


def odds_next(book: Lines, contexts: Contexts, found: int, third: int, second: int, last: int) -> float:
    """Return the odds of acceptance after these tokens ÷ those that are expected after a token of the bin ``found``."""
    if last < 0:
        return 1.0
    if book[FRESH][found] == 0.0:
        expect(book, found)
    weights, chances, expected = book[WEIGHTS + found], book[CHANCES + found], 0.0
    for i in range(BINS):
        expected += weights[i] * chances[i]
    here = chance_ahead(contexts, third, second, last, book[TICKS][HALVED], usual(book))
    here, expected = min(here, _SURE), min(max(expected, 1.0 - _SURE), _SURE)
    return here * (1.0 - expected) / ((1.0 - here) * expected)


def look(book: Lines, contexts: Contexts, row: Line, peak: Line, rows: int) -> None:
    """Enter the peak of a row, found by a draft pass over so many rows, on its line, with the tokens around it."""
    found, count = bin_of(peak[0]), int(row[PASSES])
    passed(book, int(row[LINE]), found, rows)
    around = int(peak[1]), int(peak[2]), int(peak[3]), int(peak[4])
    chance = leaning(odds_beside(contexts, *around, book[TICKS][HALVED]), chance_of(book, found))
    depth = (len(row) - HEAD) // PER_PASS
    if count < depth:
        row[HEAD + count], row[HEAD + depth + count] = float(found), chance
        for i in range(1, 5):
            row[HEAD + (1 + i) * depth + count] = peak[i]
    row[SURVIVAL] *= leaning(row[ODDS], chance)
    row[LINE], row[PASSES] = float(found), float(min(count + 1, depth))


def weigh(
    book: Lines, contexts: Contexts, desk: Lines, places: Any, peaks: Lines, answers: Line, rows: int, prices: Line,
    outlook: Any, bar: float, jump: float,
) -> None:  # fmt: skip
    """Answer the first ``rows`` of ``places`` after a draft pass over them: each keeps its token while S + U ≥ θ; they
    go on while what they hope of another pass is more than ``bar``. Below 0 it keeps all. None is kept where all that
    they win, S + U − θ and by another pass, is less than ``jump``."""
    worth = hopes = 0.0
    for k in range(rows):
        row = desk[int(places[k])]
        look(book, contexts, row, peaks[k], rows)
        answers[k] = ON
        if bar >= 0.0:
            depth, survival = int(row[PASSES]), row[SURVIVAL]
            kept = survival + beyond(outlook, depth, survival, int(row[LINE])) - prices[depth]
            if kept >= 0.0:
                peak = peaks[k]
                worth += kept
                here = odds_next(book, contexts, int(row[LINE]), int(peak[2]), int(peak[3]), int(peak[4]))
                hopes += hope(book, row, prices, outlook, here)
            else:
                answers[k] = DECLINE
    most = ON if hopes > bar else LAST
    if worth + max(0.0, hopes - bar) < jump:
        most = DECLINE
    for k in range(rows):
        answers[k] = min(answers[k], most)


def judge(book: Lines, contexts: Contexts, row: Line, drafted: int, taken: int, known: int) -> None:
    """Learn that the target took ``taken`` of a row's ``drafted`` tokens; verdicts end with the first rejection. For
    the first ``known`` it is known how often one drawn there is accepted."""
    depth = (len(row) - HEAD) // PER_PASS
    for i in range(min(taken + 1, drafted, int(row[PASSES]))):
        verdict = 1.0 if i < taken else 0.0
        if i < known:  # tells more than whether this one was
            verdict = row[HEAD + KNOWN * depth + i]
        found, at = int(row[HEAD + i]), HEAD + 2 * depth + i
        around = int(row[at]), int(row[at + depth]), int(row[at + 2 * depth]), int(row[at + 3 * depth])
        saw_at(contexts, *around, book[TICKS][HALVED], chance_of(book, found), verdict)
        saw(book, found, verdict)
        row[ODDS] = lean(row, LEANS, row[HEAD + depth + i], verdict, ROW_KEEPS, ROW_PRIOR)


def clear(row: Line) -> None:
    """Begin a row's round on its line: nothing is drafted."""
    row[SURVIVAL], row[LINE], row[PASSES] = 1.0, float(START), 0.0


def pays_from(book: Lines, row: Line, prices: Line, outlook: Any, bar: float) -> float:
    """Return the odds of a context, 1 or a power of two, after which a row that has just begun a round hopes for more
    than ``bar``; infinity where none would do."""
    here = 1.0
    while here <= ODDS_TRIED:
        if hope(book, row, prices, outlook, here) > bar:
            return here
        here *= 2.0
    return inf
