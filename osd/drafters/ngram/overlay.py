"""N-grams of each running request's own text: a small table a request, all in one arena."""

from __future__ import annotations

from osd.drafters.ngram.cells import BUCKET, Cells, clear, new_cells
from osd.drafters.ngram.counts import Index, learn

WORDS_A_SLOT = 4


class Overlays:
    """Small tables, one a request, of ``slots`` contexts each. Long texts lose their weakest contexts."""

    def __init__(self, order: int, slots: int, rows: int = 8) -> None:
        self.order, self.slots = order, slots
        self.arena = new_cells(slots // BUCKET, slots * WORDS_A_SLOT, (rows,))
        self._free = list(range(rows - 1, -1, -1))

    def open(self, tokens: Index) -> int:
        """Open a place for a request that begins with these tokens, and return it."""
        if not self._free:
            self._extend()
        place = self._free.pop()
        clear(self.table(place))
        self.learn(place, tokens, 0)
        return place

    def learn(self, place: int, tokens: Index, start: int) -> None:
        """Count the n-grams of the request that end at ``tokens[start:]``."""
        learn(self.table(place), tokens, start, self.order, 0.0)

    def close(self, place: int) -> None:
        """Free the place of a request that has ended."""
        self._free.append(place)

    def table(self, place: int) -> Cells:
        """Return one request's table."""
        return Cells(*(array[place] for array in self.arena))

    def _extend(self) -> None:
        rows = len(self.arena.keys)
        more = new_cells(self.slots // BUCKET, self.slots * WORDS_A_SLOT, (2 * rows,))
        for name in Cells._fields:
            getattr(more, name)[:rows] = getattr(self.arena, name)
        self.arena = more
        self._free = list(range(2 * rows - 1, rows - 1, -1))
