"""The table of n-grams that all requests share: it learns while it drafts, within a memory bound.

The paper's tri-gram matrix (Adaptix, Eq. 1) with its shorter contexts beside it. A :class:`Table` may be used by
several threads: whichever reads or counts holds its lock, for microseconds, and the compiled calls let other threads
run. A snapshot holds it for one stretch of buckets at a time, so a list in it is whole and the decoding thread waits
for no more than a stretch.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from osd.drafters.ngram import BadTable
from osd.drafters.ngram.cells import (
    BUCKET,
    CONTEXTS,
    EMPTY,
    EVICTED,
    LARGEST_TOKEN,
    NOWHERE,
    ORDERS,
    SLOT_BYTES,
    TOP,
    WIDEST,
    WORD_BYTES,
    Cells,
    claim,
    entries_of,
    new_cells,
    take_block,
)
from osd.drafters.ngram.counts import Index, learn, learn_documents
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


DEFAULT_MEMORY = 64 << 20
WORDS_A_SLOT = 2
"""Words of the pool for each slot, to begin with. Text has about three successors to a context, and most contexts
one."""
STRETCH = 4096
"""Slots that a snapshot copies at once."""
FULL = 0.5
"""Share of its room from which on a growing table takes more."""


@dataclass(frozen=True, slots=True)
class TableSettings:
    """Settings of a table."""

    order: int = 4
    """n: 2, 3 or 4 tokens, the last of which is guessed from those before."""
    memory: int = DEFAULT_MEMORY
    """Most bytes. Where they are used up the weakest contexts make room."""
    half_life: int = 0
    """Tokens learned after which every count has been halved once, and n-grams seen once have gone; 0: never."""

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise BadTable(name="order", reason=f"{self.order} is not one of {', '.join(map(str, ORDERS))}.")
        if self.memory < SMALLEST:
            raise BadTable(name="memory", reason=f"{self.memory} bytes are too few; {SMALLEST} is the least.")
        if self.half_life < 0:
            raise BadTable(name="half_life", reason=f"{self.half_life} is negative; 0 means never.")


SMALLEST = 16 * (BUCKET * SLOT_BYTES + BUCKET * WORDS_A_SLOT * WORD_BYTES)


class Table:
    """Counts of n-grams up to ``settings.order`` tokens long."""

    def __init__(self, settings: TableSettings = TableSettings(), cells: Cells | None = None, learned: int = 0) -> None:
        self.settings = settings
        self.cells = cells or room_of(settings.memory)
        self.lock = Lock()
        self.learned = learned
        """Number of tokens counted."""
        self.born = 0
        """The newest entry about forgetting when it began; see :mod:`storage.sql.forgotten`."""
        self._moved = 0

    @property
    def bytes(self) -> int:
        """Memory of its arrays, in bytes."""
        return sum(int(array.nbytes) for array in self.cells)

    @property
    def contexts(self) -> int:
        """Number of contexts kept, of every length."""
        return int(self.cells.state[CONTEXTS])

    @property
    def evicted(self) -> int:
        """Number of contexts that had to make room."""
        return int(self.cells.state[EVICTED])

    def learn(self, tokens: Index, start: int = 0) -> None:
        """Count the n-grams that end at ``tokens[start:]``, verified tokens of one text; those before are context.

        Tokens are int64 and were checked when the text came in (:func:`require_tokens`).
        """
        half_life = self.settings.half_life
        with self.lock:
            pace = len(self.cells.keys) / half_life if half_life else 0.0
            learn(self.cells, tokens, start, self.settings.order, pace)
            self.learned += len(tokens) - start

    def learn_documents(self, tokens: Index, starts: Index) -> None:
        """Count whole texts, text d being ``tokens[starts[d]:starts[d + 1]]``, growing within the bound as room fills
        up.

        For building; a table that serves keeps its size. Raises BadTable.
        """
        require_tokens(tokens)
        self._make_room(len(tokens))
        with self.lock:
            learn_documents(self.cells, tokens, starts, self.settings.order)
            self.learned += len(tokens)

    def _make_room(self, tokens: int) -> None:
        slots, words = len(self.cells.keys), len(self.cells.pool)
        fuller = max((self.contexts + tokens) / slots, (int(self.cells.state[TOP]) + tokens) / words)
        if fuller > FULL:
            factor = max(1.6, fuller / FULL)
            self.resize(int(factor * slots), int(factor * words))

    def resize(self, slots: int, words: int) -> None:
        """Move into another amount of room, within the bound."""
        share = min(1.0, self.settings.memory / (slots * SLOT_BYTES + words * WORD_BYTES))
        cells = new_cells(max(1, int(share * slots) // BUCKET), max(1, int(share * words)))
        if len(cells.keys) <= len(self.cells.keys) and len(cells.pool) <= len(self.cells.pool):
            return
        with self.lock:
            put_lists(cells, *take_part(self.cells, 0, len(self.cells.keys)))
            cells.state[EVICTED] += self.cells.state[EVICTED]
            self.cells = cells
            self._moved += 1

    def snapshot(self) -> Lists:
        """Copy every context with its list, each as it stood at one moment, while others go on reading and learning."""
        while True:
            moved, parts = self._moved, []
            for first in range(0, len(self.cells.keys), STRETCH):
                with self.lock:
                    if moved != self._moved:
                        break
                    parts.append(take_part(self.cells, first, first + STRETCH))
            else:
                return Lists(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def room_of(memory: int) -> Cells:
    """Allocate empty cells of ``memory`` bytes."""
    buckets = memory // (BUCKET * (SLOT_BYTES + WORDS_A_SLOT * WORD_BYTES))
    return new_cells(buckets, buckets * BUCKET * WORDS_A_SLOT)


def first_room(settings: TableSettings) -> Cells:
    """Allocate little room, for a table that will grow."""
    return room_of(min(settings.memory, 1 << 20))


def take_part(cells: Cells, first: int, last: int) -> Lists:
    """Copy the contexts of some slots out."""
    last = min(last, len(cells.keys))
    contexts, entries = count_lists(cells, first, last)
    lists = Lists(np.empty(contexts, np.uint64), np.empty(contexts, np.uint8), np.empty(entries, np.uint32))
    take_lists(cells, first, last, *lists)
    return lists


def room_for(lists: Lists, spare: int) -> tuple[int, int]:
    """Return buckets and words for these contexts and ``spare`` times as many more. At half-full buckets few
    overflow."""
    words = int(np.exp2(np.ceil(np.log2(lists.lengths[lists.lengths > 1].astype(float)))).sum())
    return (2 * (1 + spare) * len(lists.keys)) // BUCKET + 16, (1 + spare) * words + (1 << WIDEST)


def bytes_for(lists: Lists) -> int:
    """Return the memory that these contexts take, in bytes, without room for more."""
    buckets, words = room_for(lists, 0)
    return buckets * BUCKET * SLOT_BYTES + words * WORD_BYTES


def table_from(lists: Lists, settings: TableSettings, learned: int, spare: int = 1) -> Table:
    """Make a table of these contexts, with room for ``spare`` times as many more within its bound. Where that is too
    small, the weakest are left out."""
    buckets, words = room_for(lists, spare)
    share = min(1.0, settings.memory / (buckets * BUCKET * SLOT_BYTES + words * WORD_BYTES))
    cells = new_cells(max(1, int(share * buckets)), max(1, int(share * words)))
    put_lists(cells, *lists)
    return Table(settings, cells, learned)


def require_tokens(tokens: npt.NDArray[np.integer]) -> None:
    """Check that an entry has room for every token. Raises BadTable."""
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) <= LARGEST_TOKEN:
        wrong = int(tokens.min()) if tokens.min() < 0 else int(tokens.max())
        raise BadTable(name="token", reason=f"{wrong} is not between 0 and {LARGEST_TOKEN}.")
