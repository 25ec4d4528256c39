"""Updates of an n-gram table, compiled: counting, room for lists that grow, eviction, and ageing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from osd.drafters.ngram.cells import (
    BUCKET,
    CONTEXTS,
    EMPTY,
    EVICTED,
    HAND,
    MOST,
    NOWHERE,
    ONE,
    ONE_COUNT,
    SHIFT,
    STARVED,
    TOKEN_MASK,
    TOP,
    USED,
    WIDEST,
    Cells,
    bucket_of,
    entries_of,
    find,
)


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
