"""Counting n-grams and reading what follows a context, compiled.

P(w | context) of Eq. 1 of Adaptix over two tables, with back-off: c = shared + weight · request,

    P_n(w) = (c(w_{i−n+1} … w_{i−1}, w) + κ P_{n−1}(w)) / (Σ_v c(…, v) + κ)

κ = 0 is Eq. 1 itself: the longest context that was seen decides alone. With κ > 0 a context that was seen once does
not claim certainty. Only the first ``reach`` successors of each list are looked at; the sum is over all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from osd.drafters.ngram.cells import SHIFT, STARVED, TOKEN_MASK, Cells, age, bump, entries_of, find, key_of
from osd.kernels.code_cache import kept

Index = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
HASTE = 64
"""Slots that age for a list that finds no room to grow."""

ENOUGH = 0.01
"""Probability left to shorter contexts below which they are not looked up."""


class SearchRules(NamedTuple):
    """How to search; see :class:`osd.drafters.ngram.drafter.SearchSettings`."""

    order: int
    weight: float
    kappa: float
    shortest: int
    searches: int
    breadth: int
    depth: int
    c1: float
    c2: float


@kept
def learn(cells: Cells, tokens: Index, start: int, order: int, pace: float) -> None:
    """Count the n-grams of 1 to ``order`` tokens that end at ``tokens[start:]``; ``pace`` slots age for each token."""
    due = 0.0
    for i in range(start, len(tokens)):
        starved = cells.state[STARVED]
        for length in range(min(order - 1, i) + 1):
            bump(cells, key_of(tokens, i, length), np.uint32(tokens[i]))
        due += pace + HASTE * (cells.state[STARVED] - starved)
        if due >= 1.0:
            age(cells, int(due))
            due -= int(due)


@kept
def learn_documents(cells: Cells, tokens: Index, starts: Index, order: int) -> None:
    """Count several texts, text d being ``tokens[starts[d]:starts[d + 1]]``; no n-gram reaches from one to the next."""
    for d in range(len(starts) - 1):
        learn(cells, tokens[starts[d] : starts[d + 1]], 0, order, 0.0)


@njit
def total_of(entries: npt.NDArray[np.uint32]) -> int:
    """Sum the counts."""
    total = 0
    for i in range(len(entries)):
        total += int(entries[i] >> SHIFT)
    return total


@njit
def add_entries(
    entries: npt.NDArray[np.uint32], scale: float, reach: int, tokens: Index, chances: Floats, known: int
) -> int:
    """Add scale · count to the chance of each successor; new ones go behind those known. Returns how many are known."""
    before = known
    for i in range(min(reach, len(entries))):
        token, chance = np.int64(entries[i] & TOKEN_MASK), scale * np.int64(entries[i] >> SHIFT)
        for j in range(before):
            if tokens[j] == token:
                chances[j] += chance
                break
        else:
            if known < len(tokens):
                tokens[known], chances[known] = token, chance
                known += 1
    return known


@njit
def put_in_order(tokens: Index, chances: Floats, known: int, most: int) -> int:
    """Order the likeliest ``most`` first, likeliest first; among equal ones those that came first. Returns how many."""
    for i in range(min(most, known)):
        best = i
        for j in range(i + 1, known):
            if chances[j] > chances[best]:
                best = j
        token, chance = tokens[best], chances[best]
        for j in range(best, i, -1):
            tokens[j], chances[j] = tokens[j - 1], chances[j - 1]
        tokens[i], chances[i] = token, chance
    return min(most, known)


@njit
def successors(shared: Cells, own: Cells, context: Index, rules: SearchRules, tokens: Index, chances: Floats) -> int:
    """Find what follows the context; return how many successors there are.

    Fills ``tokens`` and ``chances`` (room for all that is looked at), the likeliest first, ``rules.breadth`` at most.
    """
    known, left = 0, 1.0
    for length in range(min(rules.order - 1, len(context)), rules.shortest - 1, -1):
        key = key_of(context, len(context), length)
        slot, own_slot = find(shared, key), find(own, key)
        total = 0.0
        if slot >= 0:
            total += total_of(entries_of(shared, slot))
        if own_slot >= 0:
            total += rules.weight * total_of(entries_of(own, own_slot))
        if total == 0.0:
            continue
        scale = left / (total + rules.kappa)
        if own_slot >= 0:
            known = add_entries(entries_of(own, own_slot), scale * rules.weight, rules.breadth, tokens, chances, known)
        if slot >= 0:
            known = add_entries(entries_of(shared, slot), scale, rules.breadth, tokens, chances, known)
        left *= rules.kappa / (total + rules.kappa)
        if left < ENOUGH:
            break
    return put_in_order(tokens, chances, known, rules.breadth)
