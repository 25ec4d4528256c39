"""An end of a link (:mod:`osd.server.process.link`) for a thread without an event loop: it takes what has come and
says what it has to say, and waits for nobody."""

from __future__ import annotations

import selectors
import socket
import time
from typing import Any

from osd.server.process.message import LENGTH, message_of, packed_message

PORTION = 1 << 18
"""Bytes that are read at a time."""


class Post:
    """Belongs to one thread."""

    def __init__(self, end: socket.socket) -> None:
        self.open = True
        """Whether the other side is there."""
        end.setblocking(False)
        self._end, self._heard, self._unsent = end, bytearray(), bytearray()
        self._portion = memoryview(bytearray(PORTION))
        """Where what is read lands; to ask the system for so much memory in each round takes 20 µs."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(end, selectors.EVENT_READ)

    def wait(self, seconds: float) -> None:
        """Until something has come, or what was said finds room; but no longer."""
        if not self.open:
            time.sleep(seconds)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._end, events)
        self._selector.select(seconds)

    def take(self) -> list[list[Any]]:
        """Every message that is there, its kind first."""
        self._read()
        found: list[list[Any]] = []
        while len(self._heard) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._heard)[0]
            if len(self._heard) < end:
                break
            found.append(message_of(self._heard[LENGTH.size : end]))
            del self._heard[:end]
        return found

    def say(self, kind: str, *what: Any) -> None:
        """To the other side; nothing where that has gone. What finds no room leaves with what is said next."""
        self._unsent += packed_message(kind, what)
        self.send()

    def send(self) -> None:
        """As much of what was said as there is room for."""
        try:
            while self._unsent and self.open:
                del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self.open = False

    def close(self) -> None:
        """At once."""
        self.open = False
        self._selector.close()
        self._end.close()

    def _read(self) -> None:
        try:
            while self.open:
                count = self._end.recv_into(self._portion)
                self._heard += self._portion[:count]
                self.open = count > 0
                if count < PORTION:
                    return
        except BlockingIOError:
            return
        except OSError:
            self.open = False
