"""Grants blocks of the target's cache to sequences, so that each of them can come to its end.

Where memory is bounded (``serve.cache_mb``), a sequence holds blocks for the text that it has, not for the one that it
may come to have: far more sequences share the memory than could all become long. That no two of them ever wait for
each other is Dijkstra's banker's algorithm: a block is given only if afterwards there is still an order in which each
sequence, those before it having ended and given back theirs, finds the blocks that it may yet want. One that is refused
waits, before it begins or in the middle of its text, and goes on once others have ended; none is thrown out.
"""

from __future__ import annotations

from collections.abc import Sequence

from osd.models.kv_blocks import BLOCK, blocks_for
from osd.models.kv_cache import RaggedCache
from osd.sequence import SequenceState


class KVCacheManager:
    """The blocks of the target's cache."""

    def __init__(self, cache: RaggedCache, limit: int) -> None:
        """Grant blocks of a cache whose rows have up to ``limit`` tokens, and room for what is drafted behind them."""
        self.cache = cache
        self._ahead = cache.length - limit

    @property
    def total(self) -> int | None:
        """Blocks that sequences may hold together; None where they are not bounded."""
        return self.cache.total

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.cache.layout.used

    @property
    def most(self) -> int:
        """Blocks that sequences can come to hold together."""
        return self.total or self.cache.rows * blocks_for(self.cache.length)

    @property
    def usage(self) -> float:
        """Share of those that is held, in [0, 1]."""
        return self.used / self.most

    def holds(self, place: int, tokens: int) -> bool:
        """Return whether the sequence at a place has blocks for so many tokens and what is drafted behind them."""
        return self.cache.layout.held[place] * BLOCK >= tokens + self._ahead

    def allocate_slots(self, place: int, rows: Sequence[SequenceState], tokens: int) -> bool:
        """Let the sequence at a place hold blocks for so many tokens and what is drafted behind them. Returns whether
        it may. ``rows``: the sequences at all places."""
        end = tokens + self._ahead
        if self.holds(place, tokens):
            return True
        if self.total is not None and not self._safe(place, rows, blocks_for(end)):
            return False
        self.cache.extend(place, [end])
        return True

    def _safe(self, place: int, rows: Sequence[SequenceState], wanted: int) -> bool:
        """Return whether all sequences can still end, one after another, once this one holds ``wanted`` blocks."""
        held = list(self.cache.layout.held[: len(rows)])
        held[place] = wanted
        free = (self.total or 0) - sum(held)
        if free < 0:
            return False
        lacking = (blocks_for(row.end + self._ahead) - own for row, own in zip(rows, held, strict=True))
        for missing, own in sorted(zip(lacking, held, strict=True)):
            if missing > free:
                return False
            free += own
        return True
