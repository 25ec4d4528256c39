"""Bounded queue between the decode loop and the recorder's thread, which wakes the thread only when that is worth it.

Every time the thread runs, it takes the interpreter, and on a machine that is busy decoding a core too. So it runs
when a batch of requests is finished, when the oldest of them has waited long enough, when logits wait to be reduced,
and when memory gets short; not at every step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from osd.recording.branches import PendingBranches
from osd.recording.extract import PendingBlock, RecordedRound, Spans, spans_of
from osd.sequence import Completion

ROUNDS = 32
"""Most rounds of a batch. More of them gain little and push other things out of the processor's caches."""
BYTES = 8 << 20
"""Bytes of logits at which a batch is full."""


class RoundBatch:
    """Some rounds in order, and the requests that ended with the last of them."""

    __slots__ = ("branches", "bytes", "completions", "launched", "rounds", "rows")

    def __init__(self, rounds: Iterable[RecordedRound] = (), completions: Iterable[Completion] = ()) -> None:
        self.rounds: list[RecordedRound] = []
        self.launched: list[PendingBlock] = []
        """What is kept of rounds on a GPU."""
        self.branches: list[PendingBranches] = []
        """The same behind refused tokens."""
        self.completions = list(completions)
        self.bytes = 0
        """Memory that the batch holds while it waits."""
        self.rows = 0
        """Rows of all its rounds: each brought its request at least one position."""
        for one in rounds:
            self.add(one)

    @property
    def full(self) -> bool:
        """Whether no more rounds should be added."""
        return self.bytes >= BYTES or max(len(self.rounds), len(self.launched)) >= ROUNDS

    def add(self, one: RecordedRound) -> None:
        """Add a round whose logits wait where they are."""
        self.rounds.append(one)
        self.bytes += one.scored.lines.nbytes + (0 if one.scored.hidden is None else one.scored.hidden.nbytes)
        self.rows += len(one.progress)

    def add_launched(self, launched: PendingBlock, branches: PendingBranches | None = None) -> None:
        """Add what is kept of a round on a GPU."""
        if branches:
            self.branches.append(branches)
            self.bytes += sum(tensor.nbytes for tensor in branches.kept)
        self.launched.append(launched)
        self.bytes += launched.bytes
        self.rows += len(launched.spans.owners)

    def kept(self, mode: str) -> int:
        """Count the positions that would be kept of it."""
        return sum(int(spans.lengths.sum()) for spans in self._spans(mode))

    def _spans(self, mode: str) -> list[Spans]:
        return [spans_of(self.rounds, mode)[0], *(launched.spans for launched in self.launched)]


ENOUGH_ROWS, ENOUGH_BYTES = 640, 16 << 20
"""Rows of rounds, and bytes of their logits, that may wait to be reduced: in smaller lots each position costs more."""


class Work(NamedTuple):
    """What the recorder's thread is to do next."""

    batches: list[RoundBatch]
    flush: bool
    """Whether to write what is finished."""
    last: bool
    """Whether nothing will follow."""


class Buffer:
    """Queue of :class:`RoundBatch` objects. ``put`` never waits; ``get`` and ``done`` are for the recorder's thread."""

    def __init__(self, limit: int, requests: int, seconds: float) -> None:
        """Hold at most ``limit`` bytes; finished requests are due when there are ``requests`` of them, or after
        ``seconds``."""
        self.limit = limit
        self._requests, self._seconds = requests, seconds
        self._batches: list[RoundBatch] = []
        self._wake = threading.Condition()
        self._held = self._taken = 0
        """Bytes: of everything in the queue, and of the part that the thread is working on."""
        self._rows = self._finished = 0
        self._oldest: float | None = None
        """Monotonic time at which the first of the finished requests came."""
        self._asked = self._closing = False
        self._idle = True

    def put(self, batch: RoundBatch) -> bool:
        """Add a batch; return False when there was room for its completions alone."""
        with self._wake:
            if fits := self._held + batch.bytes <= self.limit:
                self._held, self._rows = self._held + batch.bytes, self._rows + batch.rows
            self._batches.append(batch if fits else RoundBatch(completions=batch.completions))
            self._idle = False
            if batch.completions:
                self._finish(len(batch.completions))
            if self._crowded():
                self._wake.notify_all()
            return fits

    def get(self, until: float | None = None) -> Work:
        """Wait for work, at most until ``until`` (by time.monotonic)."""
        with self._wake:
            while not (due := self._due()) and not self._crowded() and (left := self._left(until)) != 0:
                self._wake.wait(left)
            batches, self._batches = self._batches, []
            self._taken, self._rows = self._held, 0
            if due:
                self._finished, self._oldest, self._asked = 0, None, False
            return Work(batches, due, self._closing)

    def done(self) -> None:
        """Free the memory of the work that was done."""
        with self._wake:
            self._held, self._taken = self._held - self._taken, 0
            self._idle = not self._batches and self._oldest is None
            if self._idle:
                self._wake.notify_all()

    def empty(self, timeout: float | None) -> bool:
        """Make everything here due and wait until it is done; False when the time ran out."""
        with self._wake:
            self._asked = not self._idle
            self._wake.notify_all()
            return self._wake.wait_for(lambda: self._idle, timeout)

    def close(self) -> None:
        """Make the next work the last."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()

    def _finish(self, requests: int) -> None:
        self._finished += requests
        first = self._oldest is None
        self._oldest = self._oldest or time.monotonic()
        if first or self._due():  # the first one starts the clock that the thread sleeps by
            self._wake.notify_all()

    def _left(self, until: float | None) -> float | None:
        """Return the seconds until the thread is due to run by itself; None for never."""
        ends = [until, None if self._oldest is None else self._oldest + self._seconds]
        return min((max(0.0, end - time.monotonic()) for end in ends if end is not None), default=None)

    def _due(self) -> bool:
        old = self._oldest is not None and time.monotonic() - self._oldest >= self._seconds
        return old or self._finished >= self._requests or self._asked or self._closing

    def _crowded(self) -> bool:
        held = self._held - self._taken
        return self._rows >= ENOUGH_ROWS or held >= ENOUGH_BYTES or 2 * held > self.limit
