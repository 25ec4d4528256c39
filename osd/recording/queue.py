"""Between the decode loop and the recorder's thread: a bounded queue that knows when waking the thread is worth it.

Every time the thread runs, it takes the interpreter, and on a machine that is busy decoding a core too. So it runs
when a batch of requests is finished, when the oldest of them has waited long enough, when logits wait to be reduced,
and when memory gets short; not at every step.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from osd.recording.round_batch import RoundBatch

ENOUGH_ROWS, ENOUGH_BYTES = 640, 16 << 20
"""Rows of rounds that may wait to be looked at, and how large their logits may be: fewer cost more a position."""


class Work(NamedTuple):
    """What the thread is to do."""

    parcels: list[RoundBatch]
    flush: bool
    """Write what is finished."""
    last: bool
    """Nothing will follow."""


class Buffer:
    """Parcels in order. ``put`` never waits; ``get`` and ``done`` are the thread's."""

    def __init__(self, limit: int, requests: int, seconds: float) -> None:
        """At most ``limit`` bytes; what is finished is due with so many ``requests``, or after so many ``seconds``."""
        self.limit = limit
        self._requests, self._seconds = requests, seconds
        self._parcels: list[RoundBatch] = []
        self._wake = threading.Condition()
        self._held = self._taken = 0
        """Bytes: of everything here, and of it what the thread is working on."""
        self._rows = self._finished = 0
        self._oldest: float | None = None
        """When the first of the finished requests came, by a clock that nobody sets."""
        self._asked = self._closing = False
        self._idle = True

    def put(self, parcel: RoundBatch) -> bool:
        """Add a parcel; False when only its completions found room."""
        with self._wake:
            if fits := self._held + parcel.bytes <= self.limit:
                self._held, self._rows = self._held + parcel.bytes, self._rows + parcel.rows
            self._parcels.append(parcel if fits else RoundBatch(completions=parcel.completions))
            self._idle = False
            if parcel.completions:
                self._finish(len(parcel.completions))
            if self._crowded():
                self._wake.notify_all()
            return fits

    def get(self, until: float | None = None) -> Work:
        """Wait for work, ``until`` that time.monotonic at most."""
        with self._wake:
            while not (due := self._due()) and not self._crowded() and (left := self._left(until)) != 0:
                self._wake.wait(left)
            parcels, self._parcels = self._parcels, []
            self._taken, self._rows = self._held, 0
            if due:
                self._finished, self._oldest, self._asked = 0, None, False
            return Work(parcels, due, self._closing)

    def done(self) -> None:
        """The work is done: its memory is free."""
        with self._wake:
            self._held, self._taken = self._held - self._taken, 0
            self._idle = not self._parcels and self._oldest is None
            if self._idle:
                self._wake.notify_all()

    def empty(self, timeout: float | None) -> bool:
        """Make everything here due and wait until it is done; False when the time ran out."""
        with self._wake:
            self._asked = not self._idle
            self._wake.notify_all()
            return self._wake.wait_for(lambda: self._idle, timeout)

    def close(self) -> None:
        """The next work is the last."""
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
        """Seconds until the thread is to run by itself; None: never."""
        ends = [until, None if self._oldest is None else self._oldest + self._seconds]
        return min((max(0.0, end - time.monotonic()) for end in ends if end is not None), default=None)

    def _due(self) -> bool:
        old = self._oldest is not None and time.monotonic() - self._oldest >= self._seconds
        return old or self._finished >= self._requests or self._asked or self._closing

    def _crowded(self) -> bool:
        held = self._held - self._taken
        return self._rows >= ENOUGH_ROWS or held >= ENOUGH_BYTES or 2 * held > self.limit
