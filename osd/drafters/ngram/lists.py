"""A table's contexts as three flat arrays: how it is saved, moved and examined."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from osd.drafters.ngram.cells import EMPTY, NOWHERE, Cells, entries_of
from osd.drafters.ngram.changes import claim, take_block
from osd.kernels.code_cache import kept

Keys = npt.NDArray[np.uint64]
Lengths = npt.NDArray[np.uint8]
Entries = npt.NDArray[np.uint32]


class Lists(NamedTuple):
    """C contexts with N entries together."""

    keys: Keys
    """(C,) key of each context."""
    lengths: Lengths
    """(C,) entries of each, 1 to 64."""
    entries: Entries
    """(N,) entries of one context after another, most frequent first; count << 20 | token."""


@kept
def count_lists(cells: Cells, first: int, last: int) -> tuple[int, int]:
    """Count the contexts and entries in some slots."""
    contexts, entries = 0, 0
    for slot in range(first, last):
        if cells.keys[slot] != EMPTY:
            contexts += 1
            entries += len(entries_of(cells, slot))
    return contexts, entries


@kept
def take_lists(cells: Cells, first: int, last: int, keys: Keys, lengths: Lengths, entries: Entries) -> None:
    """Copy the contexts of some slots out."""
    at, end = 0, 0
    for slot in range(first, last):
        if cells.keys[slot] != EMPTY:
            found = entries_of(cells, slot)
            keys[at], lengths[at] = cells.keys[slot], len(found)
            entries[end : end + len(found)] = found
            at, end = at + 1, end + len(found)


@kept
def put_lists(cells: Cells, keys: Keys, lengths: Lengths, entries: Entries) -> None:
    """Copy contexts into cells that have none of them. A list whose block does not fit keeps its first entry."""
    end = 0
    for at in range(len(keys)):
        slot = claim(cells, keys[at])
        length = int(lengths[at])
        cells.values[slot] = entries[end]
        kind = 0
        while 1 << kind < length:
            kind += 1
        if kind > 0:
            block = take_block(cells, kind)
            if block != NOWHERE:
                for i in range(length):
                    cells.pool[block + i] = entries[end + i]
                cells.values[slot], cells.kinds[slot] = block, kind
        end += length
