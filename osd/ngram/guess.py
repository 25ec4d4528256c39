"""The token that a table finds likeliest to follow each row, and whether to draft it in a model's place, compiled.

A guess comes from the longest context that was seen. How often guesses were right is kept by *kind of guess*: how long
the context was, how often it was seen, what share of that the token had, and whether the request itself had said it.
How often the model was right is kept by how sure it was. The more trusted of the two is drafted; where
the model could hardly be trusted more, it is not even asked.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from osd.ngram.cells import SHIFT, TOKEN_MASK, Cells, entries_of, find, key_of, table_of
from osd.ngram.compiling import kept
from osd.ngram.counts import Floats, Index, total_of

COUNTS, SHARES = 10, 5
"""Kinds of guess by how often a context was seen (1, 2-3, 4-7, …) and by its token's share, in quarters."""
GUESSES = 3 * 2 * COUNTS * SHARES
"""Kinds of guess."""
SURENESS = 13
"""Kinds of model tokens: the likeliest token's probability p in tenths up to a half, then 1 − p in halvings."""
NO_GUESS = -1
RIGHT, SEEN, OFTEN = 0, 1, 2
"""Places in a kind's counts; how often a kind comes is kept of the model's kinds."""
MEMORY, SLOWLY = 0.995, 0.999
"""What an older observation weighs beside the next newer one: of the same kind, and in how often kinds come."""
LEAST = 32.0
"""Observations of the model before it may go unasked."""
MARGIN = 0.03
"""Chance to be right for which the model is not asked."""
Flags = npt.NDArray[np.bool_]


@njit
def ask(shared: Cells, own: Cells, key: np.uint64, weight: float) -> tuple[int, float, float, bool]:
    """A context's likeliest token, its count, the context's, and whether the request knew it; token −1: never seen."""
    slot, own_slot = find(shared, key), find(own, key)
    token, most, total = NO_GUESS, 0.0, 0.0
    if slot >= 0:
        entries = entries_of(shared, slot)
        token, most, total = int(entries[0] & TOKEN_MASK), float(entries[0] >> SHIFT), float(total_of(entries))
    if own_slot >= 0:
        mine = entries_of(own, own_slot)
        total += weight * total_of(mine)
        for i in range(len(mine)):
            candidate, count = int(mine[i] & TOKEN_MASK), weight * int(mine[i] >> SHIFT)
            if slot >= 0:
                for entry in entries_of(shared, slot):
                    if int(entry & TOKEN_MASK) == candidate:
                        count += int(entry >> SHIFT)
            if count > most:
                token, most = candidate, count
    return token, most, total, bool(own_slot >= 0)


@njit
def kind_of(length: int, count: float, total: float, own: bool) -> int:
    """The kind of a guess after ``length`` tokens of context."""
    often = min(COUNTS - 1, int(np.log2(total)))
    share = int((SHARES - 1) * count / total)
    return (((length - 1) * 2 + own) * COUNTS + often) * SHARES + share


@njit
def sureness_of(peak: float) -> int:
    """The kind of a model's token of this probability."""
    if peak < 0.5:
        return int(10 * peak)
    return 4 + min(SURENESS - 5, int(-np.log2(max(1e-9, 1.0 - peak))))


@njit
def trust(counts: Floats) -> np.float64:
    """Share of a kind that was right, with one right and one wrong before the first."""
    return np.float64((counts[RIGHT] + 1.0) / (counts[SEEN] + 2.0))


@njit
def note(counts: Floats, right: bool) -> None:
    """One more was right, or was not."""
    counts[RIGHT] = MEMORY * counts[RIGHT] + right
    counts[SEEN] = MEMORY * counts[SEEN] + 1.0


@njit
def gain_of_asking(models: Floats, believed: float) -> float:
    """What the chance to be right would rise by, in the mean, if the model were asked too: Σ_b f_b max(0, t_b − t)
    over its kinds b, which come with frequency f_b and are trusted t_b. 1 while too little is known of the model."""
    often, gain = 0.0, 0.0
    for kind in range(SURENESS):
        often += models[kind, OFTEN]
        gain += models[kind, OFTEN] * max(0.0, trust(models[kind]) - believed)
    return gain / often if often >= LEAST else 1.0


@kept
def look_up(
    shared: Cells, arena: Cells, places: Index, tails: Index, order: int, weight: float, sampled: Flags,
    models: Floats, guesses: Floats, found: Index, kinds: Index, believed: Floats, certain: Flags,
) -> None:  # fmt: skip
    """What the table guesses for each of B rows, without asking the model.

    ``tails`` (B, order − 1) end the rows' texts, filled up in front with −1. ``models`` (2, SURENESS, 3) and
    ``guesses`` (2, GUESSES, 2) say what was right so far, of greedy and of sampled rows. Fills (B,): ``found`` the
    tokens or NO_GUESS, ``kinds`` their kinds, ``believed`` the trust in them, and ``certain`` where asking the model
    would gain less than MARGIN.
    """
    for r in range(len(places)):
        own, tail = table_of(arena, places[r]), tails[r]
        found[r], believed[r], certain[r] = NO_GUESS, -1.0, False
        for length in range(order - 1, 0, -1):
            if tail[order - 1 - length] < 0:
                continue
            token, count, total, mine = ask(shared, own, key_of(tail, order - 1, length), weight)
            if token != NO_GUESS:
                one = np.int64(sampled[r])
                found[r], kinds[r] = token, kind_of(length, count, total, mine)
                believed[r] = trust(guesses[one, kinds[r]])
                certain[r] = gain_of_asking(models[one], believed[r]) < MARGIN
                break


@kept
def choose(
    tails: Index, said: Index, peaks: Floats, sampled: Flags, models: Floats, found: Index, believed: Floats,
    drafted: Index,
) -> None:  # fmt: skip
    """Draft the model's tokens ``said`` (B,), whose likeliest has the probability ``peaks``, or the table's; where
    nobody asked the model (NO_GUESS) the table's. Fills ``drafted`` (B,), appends it to the tails, and sets
    ``believed`` to −1 where the model's stand. Whether a row is overruled does not hang on the token that was drawn."""
    for r in range(len(tails)):
        asked = said[r] != NO_GUESS
        if asked and believed[r] <= trust(models[np.int64(sampled[r]), sureness_of(peaks[r])]):
            believed[r] = -1.0
        drafted[r] = said[r] if asked and believed[r] < 0 else found[r]
        tails[r, :-1] = tails[r, 1:]
        tails[r, -1] = drafted[r]


@kept
def hear_row(
    emitted: Index, row: int, said: Index, peaks: Floats, sampled: bool, models: Floats, guesses: Floats, found: Index,
    kinds: Index, believed: Floats,
) -> None:  # fmt: skip
    """What the target said at n drafted positions of one row, after n steps of :func:`choose`, whose arrays are
    (G, B), G ≥ n. Of a sampled row a token of the model that was not drafted says nothing: it was not judged."""
    one = np.int64(sampled)
    for i in range(len(emitted)):
        if found[i, row] != NO_GUESS:
            note(guesses[one, kinds[i, row]], emitted[i] == found[i, row])
        if said[i, row] != NO_GUESS and (not sampled or believed[i, row] < 0):
            kind = sureness_of(peaks[i, row])
            models[one, :, OFTEN] *= SLOWLY
            models[one, kind, OFTEN] += 1.0
            note(models[one, kind], emitted[i] == said[i, row])
