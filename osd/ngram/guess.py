"""The token that a table finds likeliest to follow each row, and whether to draft it in a model's place, compiled.

A guess comes from the longest context that was seen. How often guesses were right is kept by *kind of guess*: how long
the context was, how often it was seen, what share of that the token had, and whether the request itself had said it.
How often the model was right is kept by how sure it was. The more trusted of the two is drafted; where
the model could hardly be trusted more, it is not even asked.

What a table would have guessed is known at every token that the target says, drafted or not, and is counted there:
where drafting does not pay for a while, trust does not stand still. Of the model only what it drafted is known.
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
CLAIM, CLAIMED = 0.8, 4.0
"""Share of the probability that a model gives its token which is believed before it was judged, and how many
observations that belief weighs. It is too sure of itself where traffic is new."""
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
def trust_in_model(counts: Floats, kind: int) -> np.float64:
    """The same of a kind of the model's tokens, beginning with a share of what their probability claims."""
    claim = 0.1 * kind + 0.05 if kind < 5 else 1.0 - 0.75 * 0.5 ** (kind - 4)
    return np.float64((counts[RIGHT] + CLAIMED * CLAIM * claim) / (counts[SEEN] + CLAIMED))


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
        gain += models[kind, OFTEN] * max(0.0, trust_in_model(models[kind], kind) - believed)
    return gain / often if often >= LEAST else 1.0


@njit
def guess(
    shared: Cells, own: Cells, tokens: Index, end: int, longest: int, weight: float
) -> tuple[int, int]:
    """The token that the table expects after ``tokens[:end]``, and the kind of that guess; NO_GUESS where it knows
    none of the contexts."""
    for length in range(min(longest, end), 0, -1):
        if tokens[end - length] < 0:
            continue
        token, count, total, mine = ask(shared, own, key_of(tokens, end, length), weight)
        if token != NO_GUESS:
            return token, kind_of(length, count, total, mine)
    return NO_GUESS, 0


@kept
def look_up(
    shared: Cells, arena: Cells, places: Index, tails: Index, weight: float, sampled: Flags, models: Floats,
    guesses: Floats, found: Index, believed: Floats, certain: Flags,
) -> None:  # fmt: skip
    """What the table guesses for each of B rows, without asking the model.

    ``tails`` (B, order − 1) end the rows' texts, filled up in front with −1. ``models`` (2, SURENESS, 3) and
    ``guesses`` (2, GUESSES, 2) say what was right so far, of greedy and of sampled rows. Fills (B,): ``found`` the
    tokens or NO_GUESS, ``believed`` the trust in them, and ``certain`` where asking the model would gain less than
    MARGIN.
    """
    reach = tails.shape[1]
    for r in range(len(places)):
        found[r], kind = guess(shared, table_of(arena, places[r]), tails[r], reach, reach, weight)
        believed[r], certain[r] = -1.0, False
        if found[r] != NO_GUESS:
            one = np.int64(sampled[r])
            believed[r] = trust(guesses[one, kind])
            certain[r] = gain_of_asking(models[one], believed[r]) < MARGIN


@kept
def hear_text(
    shared: Cells, arena: Cells, place: int, tokens: Index, start: int, longest: int, weight: float, sampled: bool,
    guesses: Floats,
) -> None:  # fmt: skip
    """The target said ``tokens[start:]`` of a row's text, of which the table does not know yet: what would its guesses
    have been?"""
    own, one = table_of(arena, place), np.int64(sampled)
    for end in range(start, len(tokens)):
        token, kind = guess(shared, own, tokens, end, longest, weight)
        if token != NO_GUESS:
            note(guesses[one, kind], tokens[end] == token)


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
        kind = sureness_of(peaks[r])
        if asked and believed[r] <= trust_in_model(models[np.int64(sampled[r]), kind], kind):
            believed[r] = -1.0
        drafted[r] = said[r] if asked and believed[r] < 0 else found[r]
        tails[r, :-1] = tails[r, 1:]
        tails[r, -1] = drafted[r]


@kept
def hear_row(
    emitted: Index, row: int, said: Index, peaks: Floats, sampled: bool, models: Floats, believed: Floats
) -> None:
    """What the target said at n drafted positions of one row, after n steps of :func:`choose`, whose arrays are
    (G, B), G ≥ n: was the model right? Of a sampled row a token of it that was not drafted says nothing: it was not
    judged."""
    one = np.int64(sampled)
    for i in range(len(emitted)):
        if said[i, row] != NO_GUESS and (not sampled or believed[i, row] < 0):
            kind = sureness_of(peaks[i, row])
            models[one, :, OFTEN] *= SLOWLY
            models[one, kind, OFTEN] += 1.0
            note(models[one, kind], emitted[i] == said[i, row])
