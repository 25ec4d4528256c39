"""A listening socket that several processes accept from: who has less to do takes the next connection.

All of them wake up when one comes. One that has more to do than another that serves holds back for a moment, so that
the other is faster; after ``PATIENCE`` it takes the connection all the same, since the other may hang. Connections that
wait in the socket's queue are nobody's yet, so a process that dies or stops takes none of those with it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 0.05
"""Seconds for which a process holds back at most."""
BREATH = 0.0005


class SharedSocket(socket.socket):
    """Give it to an asyncio server: it calls :meth:`accept` again and again until nothing is there."""

    def __init__(self, bound: socket.socket, is_behind: Callable[[], bool], taken: Callable[[], object]) -> None:
        """A copy of ``bound``. ``is_behind``: whether another process should be faster; ``taken`` hears of each
        connection."""
        copy = bound.dup()
        super().__init__(copy.family, copy.type, copy.proto, fileno=copy.detach())
        self._is_behind, self._taken = is_behind, taken
        self._since = self._last = 0.0
        self._full = False

    def accept(self) -> tuple[socket.socket, Any]:
        """One connection each time it is asked anew. Raises BlockingIOError where it holds back."""
        if self._full:  # asyncio asks on: the others may want the next one
            self._full = False
            raise BlockingIOError
        if self._holds_back():
            time.sleep(BREATH)
            raise BlockingIOError
        connection = super().accept()
        self._full = True
        self._taken()
        return connection

    def _holds_back(self) -> bool:
        if not self._is_behind():
            return False
        now = time.monotonic()
        if now - self._last > PATIENCE:
            self._since = now  # another connection than the one before
        self._last = now
        return now - self._since < PATIENCE
