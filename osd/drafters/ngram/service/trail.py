"""What was forgotten, known to a server within seconds: the store is polled in the thread of chores."""

from __future__ import annotations

import time

from storage.forget import Forgetter

LOOK, AGAIN = 2.0, 10.0
"""Seconds from one look to the next, and after one that failed."""


class ForgottenLog:
    """How far a server has read about forgetting. One thread polls, others may read what it found."""

    def __init__(self, forgetter: Forgetter) -> None:
        self._forgetter, self._due, self._dropped = forgetter, 0.0, 0
        self.line = 0
        """The newest entry about forgetting that was seen."""
        self.request_ids: frozenset[str] = frozenset()
        """Ids of requests forgotten, up to that entry. Some may run, or be still to come."""

    def look(self) -> None:
        """Poll the store, if it is time. Raises StoreError."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + AGAIN
        news = self._forgetter.news(self.line)
        if news.line > self.line:
            self.request_ids |= news.request_ids  # before the line: what begins after it learns from none of them
            self.line = news.line
        self._due = time.monotonic() + LOOK

    def drop_tables(self) -> None:
        """Drop stored tables once for each entry seen, as :meth:`storage.forget.Forgetter.drop_tables`. Raises
        StoreError."""
        if self._dropped < (line := self.line):
            self._forgetter.drop_tables()
            self._dropped = line
