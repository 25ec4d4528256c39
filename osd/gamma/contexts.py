"""After which tokens a draft is right: how much oftener than its peaks say, by context.

    contexts   lines of two kinds: one for a last token, one for a last token with the draft's likeliest next

A peak says how sure a draft is, and not how often it is right where it is so sure: of the pair's drafts on ``wikisql``,
those after one token were nearly always accepted, after another nearly never, at the same peak. What stands before a
drafted token is known before it is drawn, and so is its likeliest one; so the odds may decide whether it is verified.

Numbers alone, as :mod:`osd.gamma.book`. Tokens share lines by remainder: two of one line have what both deserve.
"""

from __future__ import annotations

from typing import Any

from osd.gamma.book import Line, lean, leaning, odds_of

Contexts = Any
"""A float64 array (KINDS, SLOTS, 6)."""

KINDS = 2
SLOTS = 8191
"""Lines of a kind; a prime, so that pairs of tokens spread over them."""
_PAIRS = 7919
CONTEXT_PRIOR = 0.7
"""Accepted and rejected tokens that "here as elsewhere" counts as."""
CONTEXT_KEEPS = 0.97
"""What a context keeps of its history with each judged token."""
CONTEXT_ODDS, HALVINGS = 4, 5
"""Places on a line, after the four counts of :func:`~osd.gamma.book.lean`."""

NOT_SEEN = (CONTEXT_PRIOR, CONTEXT_PRIOR, CONTEXT_PRIOR, CONTEXT_PRIOR, 1.0, 0.0)
"""The line of a context before anything is known: here as elsewhere."""

Slots = tuple[int, int]
"""A line of each kind."""
NO_CONTEXT: Slots = (-1, -1)
"""Of what no context is known, or none counts."""


class Peak(float):
    """What a draft pass tells of one row, a number, with the lines of the token's context."""

    __slots__ = ("slots", "token")
    slots: Slots
    token: int
    """The draft's likeliest, where it is the one that was drafted, by a row at temperature 0; else −1."""

    def __new__(cls, value: float, slots: Slots = NO_CONTEXT, token: int = -1) -> Peak:
        """``value``: as the signal says."""
        made = super().__new__(cls, value)
        made.slots, made.token = slots, token
        return made


def slot_of(last: int) -> int:
    """The line of a last token; −1 where there is none."""
    return last % SLOTS if last >= 0 else -1


def slots_of(last: int, token: int) -> Slots:
    """Of a draft whose likeliest next token after ``last`` is ``token``."""
    return (slot_of(last), (last * _PAIRS + token) % SLOTS) if last >= 0 else NO_CONTEXT


def recalled(line: Line, halvings: float) -> float:
    """A context's odds, once its history is halved as often as everybody's."""
    if line[HALVINGS] < halvings:
        left = 0.5 ** (halvings - line[HALVINGS])
        for i in range(4):
            line[i] = CONTEXT_PRIOR + left * (line[i] - CONTEXT_PRIOR)
        line[HALVINGS] = halvings
        line[CONTEXT_ODDS] = odds_of(line, 0)
    return float(line[CONTEXT_ODDS])


def odds_after(contexts: Contexts, last: int, halvings: float) -> float:
    """The same of any token after this one, which has the line ``last``: all that is known before a draft pass."""
    return recalled(contexts[0][last], halvings) if last >= 0 else 1.0


def odds_at(contexts: Contexts, first: int, second: int, halvings: float) -> float:
    """Odds of acceptance in a context ÷ those that peaks give."""
    if first < 0:
        return 1.0
    return odds_after(contexts, first, halvings) * recalled(contexts[1][second], halvings)


def saw_at(contexts: Contexts, first: int, second: int, halvings: float, chance: float, accepted: float) -> None:
    """The target's verdict on a token to which its peak gives this chance. What the last token has told already is not
    told again by the pair."""
    if first < 0:
        return
    after, between = contexts[0][first], contexts[1][second]
    elsewhere = leaning(recalled(after, halvings), chance)
    recalled(between, halvings)
    after[CONTEXT_ODDS] = lean(after, 0, chance, accepted, CONTEXT_KEEPS, CONTEXT_PRIOR)
    between[CONTEXT_ODDS] = lean(between, 0, elsewhere, accepted, CONTEXT_KEEPS, CONTEXT_PRIOR)
