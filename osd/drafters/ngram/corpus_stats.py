"""Statistics of a corpus' table: number of contexts, bytes, and how much of the text it predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from osd.drafters.ngram.cells import KEY_BITS, LARGEST_TOKEN, NO_TOKENS, TOKEN_BITS
from osd.drafters.ngram.corpus import Corpus
from osd.drafters.ngram.table import Lists, Table, bytes_for

SAMPLE = 200_000
"""Positions of the text that coverage is measured on."""
FIRST = (1, 4, 16)


@dataclass(frozen=True, slots=True)
class TopContext:
    """A context that was seen often."""

    context: tuple[int, ...]
    successors: tuple[int, ...]
    """The most frequent successors, most frequent first."""
    count: int


def order_of_keys(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the n of the n-grams that a context's list counts, its tokens and one more: (C,)."""
    tokens = sum((keys >> np.uint64(i * int(KEY_BITS)) > 0).astype(np.int64) for i in range(3))
    return np.where(keys == NO_TOKENS, 1, 1 + tokens)


def tokens_of_key(key: int) -> tuple[int, ...]:
    """Return a context's tokens."""
    parts = [(key >> shift) & ((1 << int(KEY_BITS)) - 1) for shift in (2 * int(KEY_BITS), int(KEY_BITS), 0)]
    return tuple(part - 1 for part in parts if part) if key != int(NO_TOKENS) else ()


def table_stats(table: Table) -> dict[str, Any]:
    """Return contexts and n-grams by n, and bytes an n-gram of the longest kind."""
    lists, order = table.snapshot(), table.settings.order
    orders = order_of_keys(lists.keys)
    grams = {n: int(lists.lengths[orders == n].sum(dtype=np.int64)) for n in range(1, order + 1)}
    return {
        "order": order, "contexts": len(lists.keys), "n_grams": grams, "table_bytes": bytes_for(lists),
        "bytes_per_n_gram": bytes_for(lists) / max(1, grams[order]), "learned": table.learned,
    }  # fmt: skip


def coverage(table: Table, corpus: Corpus) -> dict[int, float]:
    """Return the share of the corpus' own tokens that are among the first k successors of their longest context, by k.

    Measured on an even sample of documents. A text that the table has not counted is covered less.
    """
    lists = table.snapshot()
    order = np.argsort(lists.keys)
    begins = np.cumsum(lists.lengths, dtype=np.int64) - lists.lengths
    ranks: list[npt.NDArray[np.int64]] = []
    every = max(1, int(corpus.facts["tokens"]) // SAMPLE)
    for number, text in enumerate(corpus.documents()):
        if number % every == 0:
            ranks.append(_ranks(lists, order, begins, text.astype(np.uint64), table.settings.order))
    found = np.concatenate([np.zeros(0, np.int64), *ranks])
    return {k: float(np.mean(found < k)) if len(found) else 0.0 for k in FIRST}


def _ranks(
    lists: Lists, order: npt.NDArray[np.intp], begins: npt.NDArray[np.int64], text: npt.NDArray[np.uint64], n: int
) -> npt.NDArray[np.int64]:
    """Return the index of each token among its context's successors; beyond all where it is none."""
    keys = np.zeros(max(0, len(text) - n + 1), np.uint64)
    for i in range(n - 1):
        keys = (keys << KEY_BITS) | (text[i : len(keys) + i] + np.uint64(1))
    places = order[np.minimum(np.searchsorted(lists.keys, keys, sorter=order), len(order) - 1)]
    ranks = np.full(len(keys), 1 << 20)
    for place in range(max(FIRST)):
        has = (lists.keys[places] == keys) & (lists.lengths[places] > place)
        entries = lists.entries[np.minimum(begins[places] + place, len(lists.entries) - 1)]
        hit = has & ((entries & np.uint32(LARGEST_TOKEN)) == text[n - 1 :]) & (ranks == 1 << 20)
        ranks[hit] = place
    return ranks


def top_contexts(table: Table, most: int) -> list[TopContext]:
    """Return the longest contexts that were seen most."""
    lists = table.snapshot()
    begins = np.cumsum(lists.lengths, dtype=np.int64) - lists.lengths
    counts = np.add.reduceat(lists.entries >> np.uint32(TOKEN_BITS), begins)
    counts[order_of_keys(lists.keys) != table.settings.order] = 0
    found = []
    for i in np.argsort(counts, kind="stable")[::-1][:most]:
        if counts[i]:
            entries = lists.entries[begins[i] : begins[i] + min(4, int(lists.lengths[i]))] & np.uint32(LARGEST_TOKEN)
            found.append(TopContext(tokens_of_key(int(lists.keys[i])), tuple(entries.tolist()), int(counts[i])))
    return found
