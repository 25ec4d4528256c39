"""After which tokens a draft is right, before a draft pass is made and after it.

    contexts   lines of four kinds: for the last token, the last two, the last three, and for the last token with the
               draft's likeliest next

What stands before a drafted token is known before its pass is made, and mostly tells how the draft will do: of the
pair's drafts on ``wikisql``, the last three tokens told the accepted from the others as well as peaks did. After the
pass a peak says how sure a draft is, and a line of each kind how much oftener it is right where it is so sure. All of
it is known before a token is drawn, and so is the likeliest one; so the odds may decide whether it is verified.

Numbers alone, as :mod:`osd.gamma.goodput.book`. Tokens share lines by remainder: two of one line have what both
deserve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osd.gamma.goodput.book import Line, lean, leaning, odds_of

Contexts = Any
"""A float64 array (KINDS, SLOTS, PLACES)."""

ONE_BEFORE, TWO_BEFORE, THREE_BEFORE, WITH_NEXT, KINDS = 0, 1, 2, 3, 4
SLOTS = 8191
"""Lines of a kind; a prime, so that pairs of tokens spread over them."""
_PAIRS, _TRIPLES = 7919, 6131
AHEAD_PRIOR = 0.7
"""Judged tokens that what is known of fewer tokens before counts as."""
CONTEXT_PRIOR = 1.5
"""Accepted and rejected tokens that "here as elsewhere" counts as."""
CONTEXT_KEEPS = 0.97
"""What a context keeps of its history with each judged token."""
ACCEPTED_HERE, JUDGED_HERE, BESIDE, CONTEXT_ODDS, HALVINGS, PLACES = 0, 1, 2, 6, 7, 8
"""Places on a line. BESIDE: the four counts of :func:`~osd.gamma.goodput.book.lean`, beside what peaks said, and the
odds that they come to. HALVINGS: how often all of them were halved."""

NOT_SEEN = (0.0, 0.0, *([CONTEXT_PRIOR] * 4), 1.0, 0.0)
"""The line of a context before anything is known: here as elsewhere."""

Before = tuple[int, int, int]
"""Three tokens of a text, one after another; −1 where there is none."""
Around = tuple[int, int, int, int]
"""These three, and the token that a draft finds likeliest next."""
NOTHING_BEFORE: Before = (-1, -1, -1)
NO_CONTEXT: Around = (-1, -1, -1, -1)
"""The context where none is known, or none counts."""

Peak = tuple[float, int, int, int, int, int]
"""What a draft pass tells of one row: a number, as the signal says; the tokens around it; and the likeliest again where
it is the one that was drafted, by a row at temperature 0, else −1. A plain tuple: eight of them are made, and put into
an array, after every pass."""


def peak_of(value: float, around: Around = NO_CONTEXT, declined: int = -1) -> Peak:
    """Return one row's peak with its context; see :data:`Peak`."""
    return value, *around, declined


def before_of(tokens: Sequence[int]) -> Before:
    """Return the last three tokens, −1 for those that are not there."""
    if len(tokens) < len(NOTHING_BEFORE):
        tokens = [*NOTHING_BEFORE, *tokens]
    return tokens[-3], tokens[-2], tokens[-1]


def slot_of(kind: int, third: int, second: int, last: int, token: int) -> int:
    """Return the number of the line of this kind that ``token`` has after these."""
    if kind == ONE_BEFORE:
        return last % SLOTS
    if kind == TWO_BEFORE:
        return (second * _PAIRS + last) % SLOTS
    if kind == THREE_BEFORE:
        return ((third * _TRIPLES + second) * _PAIRS + last) % SLOTS
    return (last * _PAIRS + token) % SLOTS


def recalled(line: Line, halvings: float) -> Line:
    """Return a context's line, once its history is halved as often as everybody's."""
    if line[HALVINGS] < halvings:
        left = 0.5 ** (halvings - line[HALVINGS])
        line[ACCEPTED_HERE] *= left
        line[JUDGED_HERE] *= left
        for i in range(BESIDE, CONTEXT_ODDS):
            line[i] = CONTEXT_PRIOR + left * (line[i] - CONTEXT_PRIOR)
        line[CONTEXT_ODDS] = odds_of(line, BESIDE)
        line[HALVINGS] = halvings
    return line


def chance_ahead(contexts: Contexts, third: int, second: int, last: int, halvings: float, usual: float) -> float:
    """Return how often a draft is right after these tokens, as known before its pass; ``usual``: after any."""
    chance = usual  # where little is known of three tokens, two say it, and of two, one
    for kind in range(WITH_NEXT):
        line = recalled(contexts[kind][slot_of(kind, third, second, last, 0)], halvings)
        chance = (line[ACCEPTED_HERE] + AHEAD_PRIOR * chance) / (line[JUDGED_HERE] + AHEAD_PRIOR)
    return float(chance)


def odds_beside(contexts: Contexts, third: int, second: int, last: int, token: int, halvings: float) -> float:
    """Return the odds of acceptance in a context ÷ those that peaks give."""
    odds = 1.0
    if last >= 0:
        for kind in range(KINDS):
            slot = slot_of(kind, third, second, last, token)
            odds *= recalled(contexts[kind][slot], halvings)[CONTEXT_ODDS]
    return odds


def saw_at(
    contexts: Contexts, third: int, second: int, last: int, token: int, halvings: float, chance: float, accepted: float
) -> None:
    """Learn the target's verdict, 0 to 1, on a token to which its peak gives this chance."""
    if last < 0:
        return
    for kind in range(KINDS):
        line = recalled(contexts[kind][slot_of(kind, third, second, last, token)], halvings)
        line[ACCEPTED_HERE] = CONTEXT_KEEPS * line[ACCEPTED_HERE] + accepted
        line[JUDGED_HERE] = CONTEXT_KEEPS * line[JUDGED_HERE] + 1.0
        leant = leaning(line[CONTEXT_ODDS], chance)
        line[CONTEXT_ODDS] = lean(line, BESIDE, chance, accepted, CONTEXT_KEEPS, CONTEXT_PRIOR)
        chance = leant  # what this kind has told already is not told again by the next
