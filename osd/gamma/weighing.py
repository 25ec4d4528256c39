"""The arithmetic of goodput, over numbers alone: what a draft's peaks are worth, and whether another pass is.

Written so that it runs in two ways, with the same answers: over lists by the interpreter, over arrays once Numba has
compiled it (:mod:`osd.gamma.weigher`). Python between two draft passes is cold: it costs five times what it
measures warm.

    book      what is known of the draft (:mod:`osd.gamma.book`)
    contexts  after which tokens it is right (:mod:`osd.gamma.contexts`)
    desk      a line for each row of this round: S so far, bins, chances and contexts of its passes
    prices    θ_d, what verifying a row's d-th token costs, in tokens; from 1 on
    outlook   U_d(S, bin): what may yet be won after d tokens, by d, S and the last token's bin

Derivation: docs/goodput.md.
"""

from __future__ import annotations

from math import inf
from typing import Any

from osd.gamma.book import (
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
)
from osd.gamma.contexts import KINDS, Contexts, odds_after, odds_at, saw_at

SURVIVAL, LINE, PASSES, ODDS, HOPE, ANSWER, DRAFTED, TAKEN, LEANS, AFTER, HEAD = 0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13
"""Places on the desk. DRAFTED, TAKEN: the verdict on the last round, DRAFTED 0 once it is learned. LEANS: tokens
accepted, rejected, expected to be and not; ODDS: what they come to. AFTER: the context of the text's last token.
From HEAD on passes' bins, their chances, and their lines of each kind of context."""
PER_PASS = 2 + KINDS
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


def beyond(outlook: Any, depth: int, survival: float, peak_bin: int) -> float:
    """U_d(S, bin); 0 where it is not known."""
    if depth > len(outlook):
        return 0.0
    level, at = outlook[depth - 1], survival * GRID
    low = min(int(at), GRID - 1)
    here, there = level[low][peak_bin], level[low + 1][peak_bin]
    return float(here + (at - low) * (there - here))


def brings(book: Lines, before: int, survival: float, odds: float, depth: int, prices: Line, outlook: Any) -> float:
    """E max(0, S p − θ_d + U_d(S p, bin)): what a pass brings that finds a row's d-th token after one of the bin
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
    """U_d(S, b) = max(0, f_d(S, b) − ``bar``), the last d first."""
    for before in range(BINS):
        if book[FRESH][before] == 0.0:
            expect(book, before)
    for depth in range(len(outlook), 0, -1):
        for before in range(BINS):
            for k in range(1, GRID + 1):
                worth = brings(book, before, k / GRID, 1.0, depth + 1, prices, outlook)
                outlook[depth - 1][k][before] = max(0.0, worth - bar)


def hope(book: Lines, row: Line, prices: Line, outlook: Any, here: float) -> float:
    """f: what one more draft pass brings a row where the odds are ``here`` times those that peaks give."""
    before = int(row[LINE])
    if book[FRESH][before] == 0.0:
        expect(book, before)
    return brings(book, before, row[SURVIVAL], here * row[ODDS], int(row[PASSES]) + 1, prices, outlook)


def look(book: Lines, contexts: Contexts, row: Line, peak: Line) -> None:
    """A row's draft pass found this peak, in the context whose lines follow it."""
    found, count = bin_of(peak[0]), int(row[PASSES])
    passed(book, int(row[LINE]), found)
    first, second = int(peak[1]), int(peak[2])
    chance = leaning(odds_at(contexts, first, second, book[TICKS][HALVED]), chance_of(book, found))
    depth = (len(row) - HEAD) // PER_PASS
    if count < depth:
        row[HEAD + count], row[HEAD + depth + count] = float(found), chance
        row[HEAD + 2 * depth + count], row[HEAD + 3 * depth + count] = peak[1], peak[2]
    row[SURVIVAL] *= leaning(row[ODDS], chance)
    row[LINE], row[PASSES] = float(found), float(min(count + 1, depth))


def weigh(
    book: Lines, contexts: Contexts, desk: Lines, places: Any, peaks: Lines, rows: int, prices: Line, outlook: Any,
    bar: float,
) -> float:
    """After a draft pass over the first ``rows`` of ``places``: each keeps its token while S + U ≥ θ; they go on
    while what they hope of another pass is more than ``bar``. Below 0 it keeps all. ANSWER of each; returns that of
    the first."""
    hopes = 0.0
    for k in range(rows):
        row = desk[places[k]]
        look(book, contexts, row, peaks[k])
        row[ANSWER] = ON
        if bar >= 0.0:
            depth, survival = int(row[PASSES]), row[SURVIVAL]
            if survival + beyond(outlook, depth, survival, int(row[LINE])) >= prices[depth]:
                hopes += hope(book, row, prices, outlook, 1.0)
            else:
                row[ANSWER] = DECLINE
    if hopes <= bar:
        for k in range(rows):
            row = desk[places[k]]
            row[ANSWER] = min(row[ANSWER], LAST)
    return float(desk[places[0]][ANSWER])


def judge(book: Lines, contexts: Contexts, row: Line) -> None:
    """The target took TAKEN of a row's DRAFTED tokens; verdicts end with the first rejection."""
    depth, taken = (len(row) - HEAD) // PER_PASS, int(row[TAKEN])
    for i in range(min(taken + 1, int(row[DRAFTED]), int(row[PASSES]))):
        verdict = 1.0 if i < taken else 0.0
        found, first, second = int(row[HEAD + i]), int(row[HEAD + 2 * depth + i]), int(row[HEAD + 3 * depth + i])
        saw_at(contexts, first, second, book[TICKS][HALVED], chance_of(book, found), verdict)
        saw(book, found, verdict)
        row[ODDS] = lean(row, LEANS, row[HEAD + depth + i], verdict, ROW_KEEPS, ROW_PRIOR)
    row[DRAFTED] = 0.0


def begin(
    book: Lines, contexts: Contexts, desk: Lines, places: Any, rows: int, prices: Line, outlook: Any
) -> float:
    """Learns from the verdicts on the last round, and begins one with the first ``rows`` of ``places``: what does each
    HOPE of a first draft pass? Returns the sum."""
    for place in range(len(desk)):
        if desk[place][DRAFTED] > 0.0:
            judge(book, contexts, desk[place])
    hopes = 0.0
    for k in range(rows):
        row = desk[places[k]]
        row[SURVIVAL], row[LINE], row[PASSES] = 1.0, float(START), 0.0
        here = odds_after(contexts, int(row[AFTER]), book[TICKS][HALVED]) if rows == 1 else 1.0  # several rest together
        row[HOPE] = hope(book, row, prices, outlook, here)
        hopes += row[HOPE]
    return hopes


def pays_from(book: Lines, row: Line, prices: Line, outlook: Any, bar: float) -> float:
    """The odds of a context, 1 or a power of two, after which a row that has just begun a round hopes for more than
    ``bar``; infinity where none would do."""
    here = 1.0
    while here <= ODDS_TRIED:
        if hope(book, row, prices, outlook, here) > bar:
            return here
        here *= 2.0
    return inf
