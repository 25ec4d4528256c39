"""The current numbers in every snapshot: rates of the last minute and the speedup."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from storage.insights.plain_round import UndraftedRound, plain_round
from storage.insights.timeline import lately
from storage.records import now
from storage.store import Store

SECONDS = 60.0
PLAIN_SECONDS = 10.0
"""Minimum seconds between computations of b(0), which reads the whole log of requests."""


class Live:
    """The current numbers over all servers of the store. Not thread-safe."""

    def __init__(self, store: Store, lag: float, started: float) -> None:
        """Read from a store. ``lag`` is seconds an outcome may wait before it is written; ``started`` is Unix
        seconds."""
        self._store, self._lag, self._started = store, lag, started
        self._plain: UndraftedRound | None = None
        self._asked = -PLAIN_SECONDS

    def look(self) -> dict[str, Any]:
        """Return the numbers; ``speedup`` is estimated time without a draft ÷ time taken. Raises StoreError."""
        until = now() - self._lag
        found = lately(self._store.db, max(until - SECONDS, min(self._started, until - 1)), until)
        if time.monotonic() - self._asked >= PLAIN_SECONDS:
            self._plain, self._asked = plain_round(self._store.db, self._store.targets.newest()), time.monotonic()
        speedup = None
        if self._plain and found.decode_ms:
            speedup = found.emitted * self._plain.ms / found.decode_ms
        return {**asdict(found), "speedup": speedup, "speedup_how": self._plain.how if self._plain else None}
