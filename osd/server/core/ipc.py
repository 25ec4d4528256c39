"""A pair of sockets between the API server process and the engine process.

Messages leave together, in one write: on an event loop those that are said between two of its turns, in the thread that
decodes those of a round. Nobody ever waits for room: what finds none stays here and leaves later, in order.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from osd.server.core.messages import pack_message, unpack_messages

PORTION = 1 << 18
"""Bytes that are read at a time."""
Handlers = Mapping[str, Callable[..., Any]]
"""By kind, what is called with a message's contents."""


class Endpoint:
    """One end. Belongs to one event loop (``loop``), or to a thread that has none."""

    def __init__(self, end: socket.socket, loop: asyncio.AbstractEventLoop | None = None) -> None:
        end.setblocking(False)
        self.open = True
        """Whether the other side is there."""
        self._end, self._loop, self._poll = end, loop, select.poll()
        self._heard, self._unsent = bytearray(), bytearray()
        self._portion = memoryview(bytearray(PORTION))
        """Where what is read lands; to ask the system for so much memory in each round takes 20 µs."""

    def say(self, kind: str, *what: Any) -> None:
        """Tell the other side, with the next :meth:`send`, which an event loop does by itself; nothing where that has
        gone."""
        if not self.open:
            return
        if self._loop and not self._unsent:
            self._loop.call_soon(self.send)
        self._unsent += pack_message(kind, what)

    def send(self) -> None:
        """Write as much of what was said as there is room for."""
        try:
            while self._unsent and self.open:
                del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            if self._loop:
                self._loop.add_writer(self._end, self.send)
            return
        except OSError:
            self.open = False
        if self._loop and self._end.fileno() >= 0:
            self._loop.remove_writer(self._end)

    def close(self) -> None:
        """Write what there is room for and leave; who listens, here or at the other side, hears the end."""
        self.send()
        self.open = False
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        if not self._loop:
            self._end.close()

    def wait(self, seconds: float) -> None:
        """In a thread, wait until something has come or what was said finds room, but no longer."""
        if not self.open:
            time.sleep(seconds)
            return
        self._poll.register(self._end, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        self._poll.poll(seconds * 1000)

    def take(self) -> list[list[Any]]:
        """In a thread, return every message that is there, its kind first."""
        count = PORTION
        with suppress(BlockingIOError):
            while self.open and count == PORTION:
                try:
                    count = self._end.recv_into(self._portion)
                except ConnectionError:
                    count = 0
                self._hear(count)
        return list(unpack_messages(self._heard))

    async def listen(self, handlers: Handlers) -> None:
        """On an event loop, hand on what the other side says until it has gone."""
        assert self._loop is not None
        while self.open:
            try:
                count = await self._loop.sock_recv_into(self._end, self._portion)
            except ConnectionError:
                count = 0
            self._hear(count)
            for kind, *what in unpack_messages(self._heard):
                handlers[kind](*what)
        self._loop.remove_writer(self._end)
        self._end.close()

    def _hear(self, count: int) -> None:
        self._heard += self._portion[:count]
        self.open = self.open and count > 0
