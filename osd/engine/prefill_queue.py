"""Chunked prefill: sequences get a share of each step's token budget, then a place among those that decode.

They stand in the target's cache behind the rows that decode, without a gap: after n decoding rows, the i-th sequence
in prefill has place n + i. So decoding never sees them, and a pass over neighbours can serve several of them. With them
stand those that decoded before and wait for blocks of the cache.

Where memory is bounded (``serve.cache_mb``), a sequence holds blocks for the text that it has, not for the one that it
may come to have: far more sequences share the memory than could all become long. That no two of them ever wait for
each other is Dijkstra's banker's algorithm: a block is given only if afterwards there is still an order in which each
sequence, those before it having ended and given back theirs, finds the blocks that it may yet want. One that is refused
waits, before it begins or in the middle of its text, and goes on once others have ended; none is thrown out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from osd.engine.admission import AdmissionQueue
from osd.engine.stats import EngineStats
from osd.models.decoder import SCORED, Decoder
from osd.models.kv_blocks import BLOCK, blocks_for
from osd.models.kv_cache import RaggedCache
from osd.models.prefill import PrefillChunk, read_pieces
from osd.models.prefix_cache import target_prefixes
from osd.sequence import SequenceState
from storage.settings import ServeSettings


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


OLDEST = 4
"""Divisor of a step's tokens: the sequence that has waited longest gets this part, 1/4, so that short prompts, which go
first, cannot starve it."""


@dataclass(slots=True)
class PrefillState:
    """A sequence in prefill, and how much of its prompt the target's cache holds."""

    row: SequenceState
    asks_surprise: bool
    """Whether the target's logits at the prompt's end are wanted."""
    read: int = 0
    surprise: float | None = None
    """The mean of −ln p over the prompt's end."""
    decoded: bool = False
    """Whether it decoded before: there is nothing to prefill."""
    waits: bool = False
    """Whether it waits for blocks."""

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens the prompt's log-probabilities name; None where none are wanted."""
        return None if self.row.rounds else self.row.request.prompt_logprobs

    @property
    def left(self) -> int:
        """Tokens still to prefill: all but the last, which is fed with the next round."""
        return 0 if self.decoded else self.row.length - 1 - self.read


class PrefillQueue:
    """Sequences that wait for prefill or are in it, or for blocks. Used by the engine's thread."""

    def __init__(self, admission: AdmissionQueue, target: Decoder, serve: ServeSettings, stats: EngineStats) -> None:
        self.admission, self.target, self.stats = admission, target, stats
        self.blocks = KVCacheManager(target.cache, admission.longest)
        self._places, self._budget = serve.max_batch, serve.prefill_tokens
        self.readers: list[PrefillState] = []
        self.prefixes = None if target.encodes else target_prefixes(serve, target.cache)

    @property
    def rows(self) -> list[SequenceState]:
        """The sequences that do not decode now: in prefill, or waiting for a place or for blocks."""
        return [*(reader.row for reader in self.readers), *self.admission.waiting]

    def admit(self, decoding: Sequence[SequenceState]) -> list[SequenceState]:
        """Give free places to waiting sequences, and prefill one step's tokens. Returns the sequences that are ready:
        they have moved to the places behind those that are decoding, and what drafts for them is decided. Where memory
        is bounded, the first that gets no blocks waits, and those behind it, too."""
        first = len(decoding)
        self._resume(decoding)
        while self.admission.waiting and first + len(self.readers) < self._places and self._take_blocks(decoding):
            row = self.admission.waiting.popleft()
            self.readers.append(PrefillState(row, not row.rounds and self.admission.asks_surprise(row)))
            recalls = self.prefixes is not None and row.request.prompt_logprobs is None
            self.stats.prefix_queried += row.prompt_len - 1 if recalls else 0
        return self._step(first) if self.readers else []

    def take_blocks(self, decoding: list[SequenceState], leave: Callable[[SequenceState], None]) -> None:
        """Take the blocks that a round of the decoding rows may write, the oldest first. Those that get none leave the
        rows, and their drafts by ``leave``, which read them again later; they wait at the place behind the rows."""
        short = [row for place, row in enumerate(decoding) if not self.blocks.holds(place, row.length)]
        for row in sorted(short, key=lambda row: row.started):
            place, rows = decoding.index(row), [*decoding, *(reader.row for reader in self.readers)]
            if not self.blocks.allocate_slots(place, rows, row.length):
                last = decoding.pop()
                if last is not row:
                    self.target.swap_rows(place, len(decoding), max(row.length, last.length) - 1)
                    decoding[place] = last
                self.readers.insert(0, PrefillState(row, False, row.length - 1, decoded=True, waits=True))
                self.stats.set_aside += 1
                leave(row)
                row.drafter_seen = 0

    def _resume(self, decoding: Sequence[SequenceState]) -> None:
        """Give blocks to sequences that wait for them, the oldest first."""
        for reader in sorted((each for each in self.readers if each.waits), key=lambda reader: reader.row.started):
            place = len(decoding) + self.readers.index(reader)
            rows = [*decoding, *(each.row for each in self.readers)]
            reader.waits = not self.blocks.allocate_slots(place, rows, reader.row.length)

    def _take_blocks(self, decoding: Sequence[SequenceState]) -> bool:
        """Take the blocks of the prompt that has waited longest; return False where there are none for it, or others
        wait for theirs."""
        rows = [*decoding, *(reader.row for reader in self.readers), self.admission.waiting[0]]
        waits = any(reader.waits for reader in self.readers)
        granted = not waits and self.blocks.allocate_slots(len(rows) - 1, rows, rows[-1].length)
        self.stats.waited_for_memory += not granted
        return granted

    def _step(self, first: int) -> list[SequenceState]:
        self._recall(first)
        by_age = sorted((each for each in self.readers if not each.waits), key=lambda reader: reader.row.started)
        given = (share_whole if self.target.encodes else share)([reader.left for reader in by_age], self._budget)
        tokens = {id(reader): count for reader, count in zip(by_age, given, strict=True)}
        self._read(first, [tokens.get(id(reader), 0) for reader in self.readers])
        return [self._release(first + i, reader) for i, reader in enumerate([r for r in by_age if not r.left])]

    def drop(self, row: SequenceState, first: int) -> None:
        """Remove a sequence that ends before it decodes; ``first`` is the place of the first one in prefill."""
        if row in self.admission.waiting:
            self.admission.waiting.remove(row)
            return
        index = self.rows.index(row)
        last = self.readers.pop()
        if last.row is row:
            self.target.release_row(first + index)
        else:
            self.target.move_row(first + len(self.readers), first + index, last.read)
            self.readers[index] = last

    def close_up(self, first: int) -> None:
        """Move the last sequence in prefill to the place ``first``, which one that decoded has left."""
        if self.readers:
            last = self.readers.pop()
            self.target.move_row(first + len(self.readers) + 1, first, last.read)
            self.readers.insert(0, last)

    def _recall(self, first: int) -> None:
        """Copy from the prefix cache, including what others have prefilled since a sequence came. A prompt whose
        log-probabilities are wanted is computed, for the cache has no logits."""
        for place, reader in enumerate(self.readers, first):
            if self.prefixes is not None and reader.left and reader.top is None:
                leave = SCORED * reader.asks_surprise
                prompt, owner = reader.row.request.prompt_tokens, self.prefixes.owner(reader.row.request.tenant)
                read = self.prefixes.fetch(place, prompt, owner, read=reader.read, leave=leave)
                self.stats.prefix_hits += read - reader.read
                reader.read = read

    def _read(self, first: int, given: Sequence[int]) -> None:
        pieces: list[PrefillChunk] = []
        for place, (reader, count) in enumerate(zip(self.readers, given, strict=True), first):
            if reader.top is not None:
                self._score(place, reader, count, reader.top)
            elif reader.asks_surprise and count == reader.left > 0:
                reader.surprise = self.target.prefill_scored(place, reader.row.tokens, reader.read)
            elif count := max(0, min(count, reader.left - SCORED * reader.asks_surprise)):
                pieces.append(PrefillChunk(place, reader.read, reader.row.tokens[reader.read : reader.read + count]))
            reader.read += count
            self.stats.read_tokens += count
        read_pieces(self.target, pieces)

    def _score(self, place: int, reader: PrefillState, count: int, top: int) -> None:
        """Prefill ``count`` tokens and keep the log-probabilities of those after them."""
        row, tokens = reader.row, reader.row.tokens[reader.read : reader.read + count + 1]
        found = self.target.prefill_logprobs(place, tokens, reader.read, top)
        row.prompt_scores = found if row.prompt_scores is None else row.prompt_scores.then(found)
        if reader.asks_surprise and (last := row.prompt_scores.chosen[-SCORED:]):
            reader.surprise = -sum(last) / len(last)

    def _release(self, place: int, reader: PrefillState) -> SequenceState:
        """Move a sequence to the first place of those in prefill, exchanging it with the one there, and return it."""
        index = self.readers.index(reader)
        if index:
            self.target.swap_rows(place, place + index, max(reader.read, self.readers[0].read))
            self.readers[index] = self.readers[0]
        del self.readers[0]
        if reader.decoded:
            return reader.row
        if self.prefixes is not None:
            request = reader.row.request
            self.prefixes.keep(place, request.prompt_tokens, self.prefixes.owner(request.tenant))
        self.admission.decide(reader.row, reader.surprise)
        return reader.row


def share(left: Sequence[int], budget: int) -> list[int]:
    """Divide a step's ``budget`` among sequences with ``left`` tokens to prefill, the one that waited longest first.

    That one gets its part, then the shortest are served first, so that first tokens come early.
    """
    given = [0] * len(left)
    if left:
        given[0] = min(left[0], budget // OLDEST)
    budget -= sum(given)
    for i in sorted(range(len(left)), key=lambda i: left[i]):
        more = min(left[i] - given[i], budget)
        given[i], budget = given[i] + more, budget - more
    return given


def share_whole(left: Sequence[int], budget: int) -> list[int]:
    """Divide a step's ``budget`` among sequences whose prompts an encoder reads, each in one piece: in the order of
    their age, at least one, and as many as are within it."""
    given: list[int] = []
    for count in left:
        given.append(count if not given or sum(given) + count <= budget else 0)
    return given
