"""The numbers of this moment, for every snapshot: rates of the last minute and what they are worth."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from storage.insights.plain_round import PlainRound, plain_round
from storage.insights.timeline import lately
from storage.records import now
from storage.store import Store

SECONDS = 60.0
PLAIN_SECONDS = 10.0
"""b(0) reads the whole log of requests: it is asked for so often at most."""


class Live:
    """Of all servers of the store. Not thread-safe."""

    def __init__(self, store: Store, lag: float, started: float) -> None:
        """``lag``: seconds that an outcome may wait before it is written; ``started``: Unix seconds."""
        self._store, self._lag, self._started = store, lag, started
        self._plain: PlainRound | None = None
        self._asked = -PLAIN_SECONDS

    def look(self) -> dict[str, Any]:
        """Raises StoreError. ``speedup`` is what a round without a draft would have taken ÷ what was taken."""
        until = now() - self._lag
        found = lately(self._store.db, max(until - SECONDS, min(self._started, until - 1)), until)
        if time.monotonic() - self._asked >= PLAIN_SECONDS:
            self._plain, self._asked = plain_round(self._store.db), time.monotonic()
        speedup = None
        if self._plain and found.decode_ms:
            speedup = found.emitted * self._plain.ms / found.decode_ms
        return {**asdict(found), "speedup": speedup, "speedup_how": self._plain.how if self._plain else None}
