"""The arrays of an n-gram table, compiled: buckets of contexts, each with its successors, most frequent first.

    key     the last 0 to 3 tokens, 21 bits each; one table holds the contexts of every length
    bucket  8 slots; a context lies in the bucket that its key hashes to, or nowhere
    slot    key (8 bytes), value (4), kind (1)
    entry   count (12 bits) and token (20 bits) in one word, so that no reader sees half of it
    value   of kind 0 the only successor's entry, else where a block of 2^kind entries begins in the pool

Most contexts have one successor, which costs nothing beyond its slot. A list that grows moves to a block twice as
large, up to WIDEST; the block that it left is given to the next list of that size. Where there is no room, the
weakest goes: the last entry of a full list, the weakest context of a full bucket. A count that would not fit halves
its list. Nothing here takes a lock: :class:`osd.drafters.ngram.table.Table` does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

ORDERS = (2, 3, 4)
TOKEN_BITS = 20
LARGEST_TOKEN = (1 << TOKEN_BITS) - 1
MOST = (1 << (32 - TOKEN_BITS)) - 1
"""The largest count."""
BUCKET = 8
WIDEST = 6
"""Binary logarithm of the largest block: a context keeps at most 2^WIDEST successors."""
SLOT_BYTES, WORD_BYTES = 13, 4
KEY_BITS = np.uint64(21)
EMPTY, NO_TOKENS = np.uint64(0), np.uint64(1 << 63)
"""Keys of a free slot, and of the context without tokens."""
NOWHERE = np.uint32(0xFFFFFFFF)
TOP, USED, CONTEXTS, EVICTED, STARVED, HAND = range(6)
"""Indices in ``state``: words of the pool ever given out, words in use, contexts, contexts evicted, lists that found no
larger block, the slot that ages next."""

TOKEN_MASK = np.uint32(LARGEST_TOKEN)
SHIFT, ONE = np.uint32(TOKEN_BITS), np.uint32(1)
ONE_COUNT = np.uint32(1 << TOKEN_BITS)


class Cells(NamedTuple):
    """The arrays of one table of B buckets and P words; with a first axis more, of many tables (an arena)."""

    keys: npt.NDArray[np.uint64]
    """(8B,) keys of slots."""
    values: npt.NDArray[np.uint32]
    """(8B,) values of slots."""
    kinds: npt.NDArray[np.uint8]
    """(8B,) kinds of slots."""
    pool: npt.NDArray[np.uint32]
    """(P,) words of the blocks."""
    free: npt.NDArray[np.uint32]
    """(WIDEST + 1,) first free block of each size; a free block's first word names the next."""
    state: npt.NDArray[np.int64]
    """(6,) counters, see TOP, USED, CONTEXTS, EVICTED, STARVED, HAND."""


def new_cells(buckets: int, words: int, tables: tuple[int, ...] = ()) -> Cells:
    """Allocate empty cells. The system hands out their pages as they are first written."""
    slots = buckets * BUCKET
    return Cells(
        np.zeros((*tables, slots), np.uint64), np.zeros((*tables, slots), np.uint32),
        np.zeros((*tables, slots), np.uint8), np.zeros((*tables, words), np.uint32),
        np.full((*tables, WIDEST + 1), NOWHERE, np.uint32), np.zeros((*tables, HAND + 1), np.int64),
    )  # fmt: skip


@njit(inline="always")
def table_of(arena: Cells, i: int) -> Cells:
    """Return one table of an arena."""
    return Cells(arena.keys[i], arena.values[i], arena.kinds[i], arena.pool[i], arena.free[i], arena.state[i])


@njit
def clear(cells: Cells) -> None:
    """Empty a table."""
    cells.keys[:] = EMPTY
    cells.free[:] = NOWHERE
    cells.state[:] = 0


@njit
def key_of(tokens: npt.NDArray[np.int64], end: int, length: int) -> np.uint64:
    """Return the key of ``tokens[end − length:end]``."""
    if length == 0:
        return NO_TOKENS
    key = np.uint64(0)
    for i in range(end - length, end):
        key = (key << KEY_BITS) | np.uint64(tokens[i] + 1)
    return key


@njit
def bucket_of(keys: npt.NDArray[np.uint64], key: np.uint64) -> int:
    """Return the first slot of the key's bucket: a multiplicative hash, its upper half scaled to the number of
    buckets."""
    mixed = (key ^ (key >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
    return int(((mixed >> np.uint64(32)) * np.uint64(len(keys) // BUCKET)) >> np.uint64(32)) * BUCKET


@njit
def find(cells: Cells, key: np.uint64) -> int:
    """Return the slot of a context, or −1."""
    first = bucket_of(cells.keys, key)
    for slot in range(first, first + BUCKET):
        if cells.keys[slot] == key:
            return slot
    return -1


@njit
def length_of(block: npt.NDArray[np.uint32]) -> int:
    """Count the entries of a block before the first that is 0."""
    low, high = 0, len(block)
    while low < high:
        middle = (low + high) // 2
        if block[middle] == 0:
            high = middle
        else:
            low = middle + 1
    return low


@njit
def entries_of(cells: Cells, slot: int) -> npt.NDArray[np.uint32]:
    """Return a context's entries, most frequent first and among equal ones the newest first."""
    kind = cells.kinds[slot]
    if kind == 0:
        return cells.values[slot : slot + 1]
    block = cells.pool[cells.values[slot] : np.int64(cells.values[slot]) + (1 << kind)]
    return block[: length_of(block)]
