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


@njit
def take_block(cells: Cells, kind: int) -> np.uint32:
    """Allocate a block of 2^kind words, all 0; NOWHERE when the pool is used up."""
    size = 1 << kind
    block = cells.free[kind]
    if block != NOWHERE:
        cells.free[kind] = cells.pool[block]
    elif cells.state[TOP] + size <= len(cells.pool):
        block = np.uint32(cells.state[TOP])
        cells.state[TOP] += size
    else:
        return NOWHERE
    cells.state[USED] += size
    cells.pool[block : block + size] = 0
    return block


@njit
def give_block(cells: Cells, block: np.uint32, kind: int) -> None:
    """Free a block."""
    cells.pool[block] = cells.free[kind]
    cells.free[kind] = block
    cells.state[USED] -= 1 << kind


@njit
def drop(cells: Cells, slot: int) -> None:
    """Remove a context."""
    if cells.kinds[slot] > 0:
        give_block(cells, cells.values[slot], cells.kinds[slot])
    cells.keys[slot] = EMPTY
    cells.state[CONTEXTS] -= 1


@njit
def strength(cells: Cells, slot: int) -> int:
    """Return how much a context is worth keeping: the room that its list takes, then the count of its first
    successor."""
    kind = cells.kinds[slot]
    entry = cells.values[slot] if kind == 0 else cells.pool[cells.values[slot]]
    return (int(kind) << 12) + int(entry >> SHIFT)


@njit
def claim(cells: Cells, key: np.uint64) -> int:
    """Return a slot for a new context: a free one of its bucket, or that of the bucket's weakest, which is evicted."""
    first = bucket_of(cells.keys, key)
    weakest, least = first, np.int64(1 << 62)
    for slot in range(first, first + BUCKET):
        if cells.keys[slot] == EMPTY:
            weakest, least = slot, np.int64(-1)
            break
        worth = strength(cells, slot)
        if worth < least:
            weakest, least = slot, worth
    if least >= 0:
        drop(cells, weakest)
        cells.state[EVICTED] += 1
    cells.keys[weakest] = key
    cells.kinds[weakest] = 0
    cells.state[CONTEXTS] += 1
    return weakest


@njit
def halve(entries: npt.NDArray[np.uint32]) -> int:
    """Halve the counts, dropping those of 1. Returns how many are left."""
    left = 0
    for i in range(len(entries)):
        count = entries[i] >> np.uint32(SHIFT + ONE)
        if count > 0:
            entries[left] = (count << SHIFT) | (entries[i] & TOKEN_MASK)
            left += 1
    entries[left:] = 0
    return left


@njit
def raise_entry(entries: npt.NDArray[np.uint32], at: int) -> None:
    """Count one more; the entry moves before those that are not larger."""
    entry = entries[at] + ONE_COUNT
    while at > 0 and entries[at - 1] >> SHIFT <= entry >> SHIFT:
        entries[at] = entries[at - 1]
        at -= 1
    entries[at] = entry


@njit
def grow(cells: Cells, slot: int) -> bool:
    """Move a full list to a block twice as large; return False where there is none."""
    kind = np.int64(cells.kinds[slot])
    block = take_block(cells, kind + 1) if kind < WIDEST else NOWHERE
    if block == NOWHERE:
        cells.state[STARVED] += kind < WIDEST
        return False
    if kind == 0:
        cells.pool[block] = cells.values[slot]
    else:
        old = cells.values[slot]
        for i in range(1 << kind):
            cells.pool[block + i] = cells.pool[old + i]
        give_block(cells, old, kind)
    cells.values[slot] = block
    cells.kinds[slot] = kind + 1
    return True


@njit
def append(cells: Cells, slot: int, token: np.uint32) -> None:
    """Add a successor that a context did not have. In a full list it takes the last one's place when that was seen
    once; otherwise the last one loses a count."""
    entries = entries_of(cells, slot)
    count = len(entries)
    kind = cells.kinds[slot]
    if count == 1 << kind and not grow(cells, slot):
        last = entries[count - 1]
        if last >> SHIFT > ONE:
            entries[count - 1] = last - ONE_COUNT
            return
        at = count - 1
    else:
        at = count
    kind = cells.kinds[slot]
    if kind == 0:
        cells.values[slot] = ONE_COUNT | token
        return
    block = cells.pool[cells.values[slot] : np.int64(cells.values[slot]) + (1 << kind)]
    block[at] = token
    raise_entry(block, at)


@njit
def bump(cells: Cells, key: np.uint64, token: np.uint32) -> None:
    """Count a token after a context."""
    slot = find(cells, key)
    if slot < 0:
        slot = claim(cells, key)
        cells.values[slot] = ONE_COUNT | token
        return
    entries = entries_of(cells, slot)
    for i in range(len(entries)):
        if entries[i] & TOKEN_MASK == token:
            if entries[i] >> SHIFT == MOST:
                halve(entries)
            raise_entry(entries, i)
            return
    append(cells, slot, token)


@njit
def age(cells: Cells, slots: int) -> None:
    """Halve the counts of the next slots, in turn; contexts without successors are removed."""
    hand = cells.state[HAND]
    for _ in range(slots):
        slot = hand
        hand = hand + 1 if hand + 1 < len(cells.keys) else 0
        if cells.keys[slot] != EMPTY:
            left = halve(entries_of(cells, slot))
            if left == 0:
                drop(cells, slot)
            else:
                shrink(cells, slot, left)
    cells.state[HAND] = hand


@njit
def shrink(cells: Cells, slot: int, left: int) -> None:
    """Move a list to the smallest block that holds it."""
    kind, old = np.int64(cells.kinds[slot]), cells.values[slot]
    need = 0
    while 1 << need < left:
        need += 1
    if need >= kind:
        return
    if need == 0:
        cells.values[slot] = cells.pool[old]
    else:
        block = take_block(cells, need)
        if block == NOWHERE:
            return
        for i in range(left):
            cells.pool[block + i] = cells.pool[old + i]
        cells.values[slot] = block
    give_block(cells, old, kind)
    cells.kinds[slot] = need
