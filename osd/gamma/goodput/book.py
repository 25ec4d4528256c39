"""What goodput knows of a draft: how often tokens of a peak are accepted, and what follows them.

    book   54 lines: tokens accepted and judged by bin of the peak, which bin followed which, and what that lets expect

Numbers alone, written so that they run in two ways (:mod:`osd.gamma.goodput.weighing`). Derivation: docs/goodput.md.
"""

from __future__ import annotations

from typing import Any

Lines = Any
"""list[list[float]], or a float64 array."""
Line = Any
EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
"""Between bins of the peak."""
PEAKS = len(EDGES) + 1
BINS = PEAKS + 2
"""Number of bins: those of the peak, and two for tokens that the request's own text had before
(:mod:`osd.gamma.goodput.repeats`), in which little depends on the peak."""
SAID_ACCEPTED = 0.8  # of such tokens, until it is known
START = BINS
"""In place of a bin: the row's own last token, before anything is drafted."""

ACCEPTED, JUDGED, PRIORS, FRESH, TICKS, SHARED = 0, 1, 2, 3, 4, 5
"""Lines of the book. PRIORS: judged tokens of a bin that are the guess it began with; FRESH: whether a line of
expectations is up to date; SHARED: how tokens were accepted beside what peaks say, as LEANS of a row and its ODDS, and
from USUAL on tokens accepted and judged lately."""
USUAL = 5
FOLLOWS = 6
WEIGHTS = FOLLOWS + BINS + 1
CHANCES = WEIGHTS + BINS + 1
LINES = CHANCES + BINS + 1
ALL, SINCE, PASSED, HALVED = 0, 1, 2, 3
"""Places in TICKS: tokens judged, those since all was halved, draft passes, how often all was halved."""

PRIOR = 4.0
"""Judged tokens that the peak itself counts as, in its bin."""
SHARED_PRIOR = 2.0
"""Accepted and rejected tokens that "peaks are the truth" counts as."""
SHARED_KEEPS = 0.99
"""What is kept of the history of all bins with each judged token."""
USUAL_KEEPS = 0.998
"""What is kept of the tokens accepted and judged lately, with each judged one."""
USUAL_PRIOR = 4.0
"""Judged tokens, half of them accepted, that these begin with."""
MEMORY = 160.0
"""Tokens that a bin remembers: traffic changes, and with it what a peak is worth."""
FIRST_MEMORY = 16.0
"""First passes that are remembered, of each row that drafts: they tell a change of traffic soonest (with 160 a mix of
domains is 2 % slower). Of eight rows 16 in all are two rounds, after whose luck they would rest, and learn no better.
Where fewer rows draft than before, the surplus goes by and by."""
FORGET_AFTER = 512
"""Judged tokens after which all counts are halved."""
LIKE = 0.5
"""Share of first guesses of what follows a token that is a token like it."""
NEGLIGIBLE = 0.02
"""Share of a bin's successors below which one is left out of what may come next."""
REFRESH = 16
"""Judged tokens after which what may come next is worked out again."""


def bin_of(peak: float) -> int:
    """Return the bin that a peak falls into; for a token that the text said before, of peak + 1."""
    if peak >= 1.0:
        return PEAKS + int(peak >= 1.5)
    found = 0
    for edge in EDGES:
        if peak >= edge:
            found += 1
    return found


def middle_of(peak_bin: int) -> float:
    """Return the middle of a bin of peaks; a guess for those of what the text said before."""
    if peak_bin >= PEAKS:
        return SAID_ACCEPTED
    low = EDGES[peak_bin - 1] if peak_bin > 0 else 0.0
    high = EDGES[peak_bin] if peak_bin < PEAKS - 1 else 1.0
    return (low + high) / 2


def leaning(odds: float, chance: float) -> float:
    """Return a request's own chance of acceptance, by its odds, where the book says ``chance``."""
    return odds * chance / (odds * chance + (1.0 - chance))


def chance_of(book: Lines, peak_bin: int) -> float:
    """Return how often a token of this bin is accepted; what is not known of the bin is guessed."""
    # the peak itself, leaning as all bins' tokens do: a draft that is surely wrong is found out once, not in each bin
    middle = middle_of(peak_bin)
    guess = leaning(book[SHARED][4], middle) - middle
    return float((book[ACCEPTED][peak_bin] + book[PRIORS][peak_bin] * guess) / book[JUDGED][peak_bin])


def usual(book: Lines) -> float:
    """Return the share of drafted tokens that were accepted lately, whatever their peaks."""
    return float(book[SHARED][USUAL] / book[SHARED][USUAL + 1])


def expect(book: Lines, before: int) -> None:
    """Work out what a draft pass may find after an accepted token of this bin: weights (their sum is 1), chances."""
    follows, weights, chances = book[FOLLOWS + before], book[WEIGHTS + before], book[CHANCES + before]
    total = kept = 0.0
    for i in range(BINS):
        total += follows[i]
    for i in range(BINS):
        weights[i] = follows[i] if follows[i] > NEGLIGIBLE * total else 0.0
        kept += weights[i]
    for i in range(BINS):
        weights[i] /= kept
        chances[i] = chance_of(book, i)
    book[FRESH][before] = 1.0


def guess_of(before: int, peak_bin: int) -> float:
    """Return the first guess of how often ``peak_bin`` follows a token of the bin ``before``."""
    even = 1.0 / PEAKS if peak_bin < PEAKS else 0.0
    if before == START:
        return even
    # one like it, else a draft whose second tokens were never tried would never try them; or any peak
    return LIKE * (1.0 if peak_bin == before else 0.0) + (1.0 - LIKE) * even


def passed(book: Lines, before: int, peak_bin: int, rows: int) -> None:
    """Count a peak of this bin, found after a token of the bin ``before`` by a draft pass over so many rows."""
    follows, ticks = book[FOLLOWS + before], book[TICKS]
    follows[peak_bin] += 1.0
    ticks[PASSED] += 1.0
    first = before == START
    if first:
        book[FRESH][before] = 0.0
    if first or ticks[PASSED] % REFRESH == 0.0:
        most, total = FIRST_MEMORY * rows if first else MEMORY, 0.0
        for i in range(BINS):
            total += follows[i]
        if total > most:
            keeps = max(most / total, 1.0 - 1.0 / most) if first else most / total
            for i in range(BINS):
                follows[i] *= keeps


def forget(book: Lines) -> None:
    """Halve what was counted; what is not counted any more goes back to the peak itself."""
    book[TICKS][HALVED] += 1.0
    for i in range(BINS):
        book[ACCEPTED][i] = (book[ACCEPTED][i] + PRIOR * middle_of(i)) / 2
        book[JUDGED][i] = (book[JUDGED][i] + PRIOR) / 2
        book[PRIORS][i] = (book[PRIORS][i] + PRIOR) / 2
    for before in range(BINS + 1):
        for i in range(BINS):
            book[FOLLOWS + before][i] = (book[FOLLOWS + before][i] + guess_of(before, i)) / 2


def odds_of(line: Line, at: int) -> float:
    """Return the odds of acceptance ÷ those that chances give, from the four counts at ``at``; see :func:`lean`."""
    return float(line[at] * line[at + 3] / (line[at + 1] * line[at + 2]))


def lean(line: Line, at: int, chance: float, accepted: float, keeps: float, prior: float) -> float:
    """Count a token of this chance and verdict (0 to 1), from ``at`` on: accepted, rejected, expected to be and not.
    Return :func:`odds_of` these."""
    back = (1.0 - keeps) * prior
    line[at] = keeps * line[at] + back + accepted
    line[at + 1] = keeps * line[at + 1] + back + (1.0 - accepted)
    line[at + 2] = keeps * line[at + 2] + back + chance
    line[at + 3] = keeps * line[at + 3] + back + (1.0 - chance)
    return odds_of(line, at)


def saw(book: Lines, peak_bin: int, accepted: float) -> None:
    """Learn the target's verdict on a token, 0 to 1."""
    counts, ticks, shared = book[JUDGED], book[TICKS], book[SHARED]
    ticks[ALL] += 1.0
    ticks[SINCE] += 1.0
    keeps = 1.0 if counts[peak_bin] < MEMORY else 1.0 - 1.0 / MEMORY
    counts[peak_bin] = keeps * counts[peak_bin] + 1.0
    book[ACCEPTED][peak_bin] = keeps * book[ACCEPTED][peak_bin] + accepted
    book[PRIORS][peak_bin] *= keeps
    if peak_bin < PEAKS:
        shared[4] = lean(shared, 0, middle_of(peak_bin), accepted, SHARED_KEEPS, SHARED_PRIOR)
    shared[USUAL] = USUAL_KEEPS * shared[USUAL] + accepted
    shared[USUAL + 1] = USUAL_KEEPS * shared[USUAL + 1] + 1.0
    if ticks[SINCE] % REFRESH == 0.0 or ticks[ALL] <= REFRESH:
        for before in range(BINS + 1):
            book[FRESH][before] = 0.0
    if ticks[SINCE] == FORGET_AFTER:
        ticks[SINCE] = 0.0
        forget(book)
