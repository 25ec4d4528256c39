"""Chunked prefill: sequences get a share of each step's token budget, then a place among those that decode.

They stand in the target's cache behind the rows that decode, without a gap: after n decoding rows, the i-th sequence
in prefill has place n + i. So decoding never sees them, and a pass over neighbours can serve several of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from osd.engine.admission import AdmissionQueue
from osd.engine.stats import EngineStats
from osd.models.decoder import SCORED, Decoder
from osd.models.prefill import PrefillChunk, read_pieces
from osd.models.prefix_cache import target_prefixes
from osd.sequence import SequenceState
from storage.settings import ServeSettings

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

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens the prompt's log-probabilities name; None where none are wanted."""
        return self.row.request.prompt_logprobs

    @property
    def left(self) -> int:
        """Tokens still to prefill: all but the prompt's last, which is fed with the first round."""
        return self.row.prompt_len - 1 - self.read


class PrefillQueue:
    """Sequences that wait for prefill or are in it. Used by the engine's thread."""

    def __init__(self, admission: AdmissionQueue, target: Decoder, serve: ServeSettings, stats: EngineStats) -> None:
        self.admission, self.target, self.stats = admission, target, stats
        self._places, self._budget = serve.max_batch, serve.prefill_tokens
        self.readers: list[PrefillState] = []
        self.prefixes = target_prefixes(serve, target.cache)

    @property
    def rows(self) -> list[SequenceState]:
        """The sequences that do not decode yet: in prefill, or waiting for a place."""
        return [*(reader.row for reader in self.readers), *self.admission.waiting]

    def admit(self, decoding: Sequence[SequenceState]) -> list[SequenceState]:
        """Give free places to waiting sequences, and prefill one step's tokens. Returns the sequences that are ready:
        they have moved to the places behind those that are decoding, and what drafts for them is decided. Where memory
        is bounded, the first that has no room beside the others waits, and those behind it, too."""
        first = len(decoding)
        while self.admission.waiting and first + len(self.readers) < self._places and self._take_room(decoding):
            row = self.admission.waiting.popleft()
            self.readers.append(PrefillState(row, self.admission.asks_surprise(row)))
            recalls = self.prefixes is not None and row.request.prompt_logprobs is None
            self.stats.prefix_queried += row.prompt_len - 1 if recalls else 0
        return self._step(first) if self.readers else []

    def _take_room(self, decoding: Sequence[SequenceState]) -> bool:
        """Make room for the sequence that has waited longest, as long as all may become; return False where there is
        none."""
        if self.target.cache.budget is None:
            return True
        rows = [*decoding, *(reader.row for reader in self.readers), self.admission.waiting[0]]
        ahead = self.target.cache.length - self.admission.limit  # where padding may stand
        positions = max(row.end for row in rows) + ahead
        if not self.target.cache.fits(len(rows), positions):
            self.stats.waited_for_memory += 1
            return False
        self.target.cache.admit(len(rows), positions)
        return True

    def _step(self, first: int) -> list[SequenceState]:
        self._recall(first)
        by_age = sorted(self.readers, key=lambda reader: reader.row.started)
        given = share([reader.left for reader in by_age], self._budget)
        tokens = {id(reader): count for reader, count in zip(by_age, given, strict=True)}
        self._read(first, [tokens[id(reader)] for reader in self.readers])
        return [self._release(first + i, reader) for i, reader in enumerate([r for r in by_age if not r.left])]

    def drop(self, row: SequenceState, first: int) -> None:
        """Remove a sequence that ends before it decodes; ``first`` is the place of the first one in prefill."""
        if row in self.admission.waiting:
            self.admission.waiting.remove(row)
            return
        index = self.rows.index(row)
        last = self.readers.pop()
        if last.row is not row:
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
