"""The token that a table finds likeliest to follow each row, and whether to draft it in a model's place, compiled.

Two tables predict: the one that rows share and the request's own, each from the longest context that it has seen. How
often predictions were right is kept by *kind of prediction*: whose it is, whether the other table says the same, how
long the context was, how often it was seen, and what share of that the token had. How often the model was right is kept
by how sure it was. The most trusted of the three is drafted; where the model could hardly be trusted more, it is not
even asked.

What the tables would have predicted is known at every token that the target chose, drafted or not, and is counted
there: where drafting does not pay for a while, trust does not stand still. Of the model only what it drafted is known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from osd.drafters.ngram.cells import SHIFT, TOKEN_MASK, Cells, entries_of, find, key_of, table_of
from osd.drafters.ngram.counts import Floats, Index, total_of
from osd.kernels.code_cache import kept

COUNTS, SHARES = 10, 5
"""Numbers of kinds of prediction by how often a context was seen (1, 2-3, 4-7, …), and by its token's share, in
quarters."""
ALONE, AGREE, DIFFER = 0, 1, 2
"""What the other table says: nothing, the same, another token."""
KINDS = 3 * COUNTS * SHARES
"""Number of kinds of prediction by what one table knows."""
PREDICTIONS = 2 * 3 * KINDS
"""Number of kinds of prediction in all: the shared table's and the request's own, by what the other says."""
SURENESS = 13
"""Number of kinds of model tokens: the likeliest token's probability p in tenths up to a half, then 1 − p in
halvings."""
NO_PREDICTION = -1
RIGHT, SEEN, OFTEN = 0, 1, 2
"""Indices in a kind's counts; how often a kind comes is kept for the model's kinds only."""
MEMORY, SLOWLY = 0.995, 0.999
"""Decay of an observation with each newer one: of the same kind, and in how often kinds come."""
LEAST = 32.0
"""Observations of the model before it may go unasked."""
CLAIM, CLAIMED = 0.8, 4.0
"""Share of a model's own probability that is believed before any observation, and how many observations that belief
weighs. A model is too sure of itself where traffic is new."""
MARGIN = 0.03
"""Gain in the chance to be right below which the model is not asked."""
Flags = npt.NDArray[np.bool_]


class HitRates(NamedTuple):
    """How often the model, one shared table and the rows' own tables were right; for greedy and for sampled rows."""

    models: Floats
    """(2, SURENESS, 3)"""
    predictions: Floats
    """(2, PREDICTIONS, 2)"""


def new_rates() -> HitRates:
    """Return the rates before anything was seen."""
    return HitRates(np.zeros((2, SURENESS, 3)), np.zeros((2, PREDICTIONS, 2)))


class BlendedRows(NamedTuple):
    """Arrays of B rows that have their places with one table, over up to G drafted tokens."""

    places: Index
    """(B,) the rows' own tables in the arena."""
    sampled: Flags
    """(B,)"""
    tails: Index
    """(B, order − 1) the ends of their texts, filled up in front with −1."""
    certain: Flags
    """(B,) where asking the model would gain less than MARGIN."""
    said: Index
    """(G, B) the model's tokens; NO_PREDICTION where it was not asked."""
    found: Index
    """(G, B) the more trusted table's tokens, or NO_PREDICTION."""
    drafted: Index
    """(G, B)"""
    peaks: Floats
    """(G, B) the largest probability of the model's distribution."""
    believed: Floats
    """(G, B) the trust in what was found; −1 where the model's token stands."""


@njit
def kind_of(length: int, count: int, total: int) -> int:
    """Return the kind of a prediction after ``length`` tokens of context, by what one table knows."""
    often = min(COUNTS - 1, int(np.log2(total)))
    share = (SHARES - 1) * count // total
    return ((length - 1) * COUNTS + often) * SHARES + share


@njit
def predict(cells: Cells, tokens: Index, end: int, longest: int) -> tuple[int, int]:
    """Return the token that one table expects after ``tokens[:end]``, and the kind of that prediction; NO_PREDICTION
    where it knows none of the contexts."""
    for length in range(min(longest, end), 0, -1):
        if tokens[end - length] < 0:
            continue
        slot = find(cells, key_of(tokens, end, length))
        if slot >= 0:
            entries = entries_of(cells, slot)
            return int(entries[0] & TOKEN_MASK), kind_of(length, int(entries[0] >> SHIFT), int(total_of(entries)))
    return NO_PREDICTION, 0


@njit
def both_predictions(shared: Cells, own: Cells, tokens: Index, end: int, longest: int) -> tuple[int, int, int, int]:
    """Return the shared table's token and its kind, then the request's own."""
    token, kind = predict(shared, tokens, end, longest)
    mine, my_kind = predict(own, tokens, end, longest)
    others = ALONE if token == NO_PREDICTION or mine == NO_PREDICTION else AGREE if token == mine else DIFFER
    return token, others * KINDS + kind, mine, (3 + others) * KINDS + my_kind


@njit
def sureness_of(peak: float) -> int:
    """Return the kind of a model's token of this probability."""
    if peak < 0.5:
        return int(10 * peak)
    return 4 + min(SURENESS - 5, int(-np.log2(max(1e-9, 1.0 - peak))))


@njit
def trust(counts: Floats) -> np.float64:
    """Return the share of a kind that was right, with one right and one wrong before the first."""
    return np.float64((counts[RIGHT] + 1.0) / (counts[SEEN] + 2.0))


@njit
def trust_in_model(counts: Floats, kind: int) -> np.float64:
    """Return the share of a kind of the model's tokens that was right, beginning with a share of what their probability
    claims."""
    claim = 0.1 * kind + 0.05 if kind < 5 else 1.0 - 0.75 * 0.5 ** (kind - 4)
    return np.float64((counts[RIGHT] + CLAIMED * CLAIM * claim) / (counts[SEEN] + CLAIMED))


@njit
def note(counts: Floats, right: bool) -> None:
    """Count one observation: right or wrong."""
    counts[RIGHT] = MEMORY * counts[RIGHT] + right
    counts[SEEN] = MEMORY * counts[SEEN] + 1.0


@njit
def gain_of_asking(models: Floats, believed: float) -> float:
    """Return by how much the mean chance to be right would rise if the model were asked too: Σ_b f_b max(0, t_b − t)
    over its kinds b, which come with frequency f_b and are trusted t_b. 1 while too little is known of the model."""
    often, gain = 0.0, 0.0
    for kind in range(SURENESS):
        often += models[kind, OFTEN]
        gain += models[kind, OFTEN] * max(0.0, trust_in_model(models[kind], kind) - believed)
    return gain / often if often >= LEAST else 1.0


@kept
def look_up(shared: Cells, arena: Cells, rows: BlendedRows, rates: HitRates, step: int) -> None:
    """Look up what the tables predict for each row, without asking the model: fills ``found``, ``believed`` and
    ``certain``."""
    reach, found, believed = rows.tails.shape[1], rows.found[step], rows.believed[step]
    for r in range(len(rows.places)):
        own, one = table_of(arena, rows.places[r]), np.int64(rows.sampled[r])
        token, kind, mine, my_kind = both_predictions(shared, own, rows.tails[r], reach, reach)
        found[r], believed[r], rows.certain[r] = token, -1.0, False
        if token != NO_PREDICTION:
            believed[r] = trust(rates.predictions[one, kind])
        if mine != NO_PREDICTION:
            trusted = trust(rates.predictions[one, my_kind])
            if trusted > believed[r]:
                found[r], believed[r] = mine, trusted
        if found[r] != NO_PREDICTION:
            rows.certain[r] = gain_of_asking(rates.models[one], believed[r]) < MARGIN


@kept
def count_text(
    shared: Cells, own: Cells, tokens: Index, start: int, longest: int, sampled: bool, predictions: Floats
) -> None:
    """Count what the tables would have predicted of ``tokens[start:]``, the target's, before they learn them."""
    one = np.int64(sampled)
    for end in range(start, len(tokens)):
        token, kind, mine, my_kind = both_predictions(shared, own, tokens, end, longest)
        if token != NO_PREDICTION:
            note(predictions[one, kind], tokens[end] == token)
        if mine != NO_PREDICTION:
            note(predictions[one, my_kind], tokens[end] == mine)


@kept
def choose(rows: BlendedRows, rates: HitRates, step: int) -> None:
    """Draft the model's tokens ``said``, or the table's; where the model was not asked the table's.

    Fills ``drafted``, appends it to the tails, and sets ``believed`` to −1 where the model's stand. Whether a row is
    overruled does not depend on the token that was drawn.
    """
    said, found, drafted = rows.said[step], rows.found[step], rows.drafted[step]
    believed, tails = rows.believed[step], rows.tails
    for r in range(len(tails)):
        asked = said[r] != NO_PREDICTION
        kind = sureness_of(rows.peaks[step, r])
        if asked and believed[r] <= trust_in_model(rates.models[np.int64(rows.sampled[r]), kind], kind):
            believed[r] = -1.0
        drafted[r] = said[r] if asked and believed[r] < 0 else found[r]
        tails[r, :-1] = tails[r, 1:]
        tails[r, -1] = drafted[r]


@kept
def count_row(rows: BlendedRows, rates: HitRates, row: int, emitted: Index) -> None:
    """Count whether the model was right at the drafted positions of one row that the target judged. For a sampled row
    a token of it that was not drafted tells nothing: it was not verified."""
    one = np.int64(rows.sampled[row])
    for i in range(len(emitted)):
        said = rows.said[i, row]
        if said != NO_PREDICTION and (not rows.sampled[row] or rows.believed[i, row] < 0):
            kind = sureness_of(rows.peaks[i, row])
            rates.models[one, :, OFTEN] *= SLOWLY
            rates.models[one, kind, OFTEN] += 1.0
            note(rates.models[one, kind], emitted[i] == said)
