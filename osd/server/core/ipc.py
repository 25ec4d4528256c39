"""What the process that answers HTTP and the one that decodes say to each other, over a pair of sockets.

Messages leave together, in one write: on an event loop those that are said between two of its turns, in the thread that
decodes those of a round. Nobody ever waits for room: what finds none stays here and leaves later, in order.
"""

from __future__ import annotations

import asyncio
import itertools
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from osd.server.core.messages import pack_message, unpack_messages

PORTION = 1 << 18
"""Bytes that are read at a time."""
ASK, ANSWER = "ask", "answer"
Heeds = Mapping[str, Callable[..., Any]]
"""By kind, who is told what belongs to a message."""


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
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()

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

    # a thread

    def wait(self, seconds: float) -> None:
        """Wait until something has come or what was said finds room, but no longer."""
        if not self.open:
            time.sleep(seconds)
            return
        self._poll.register(self._end, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        self._poll.poll(seconds * 1000)

    def take(self) -> list[list[Any]]:
        """Return every message that is there, its kind first."""
        count = PORTION
        with suppress(BlockingIOError):
            while self.open and count == PORTION:
                try:
                    count = self._end.recv_into(self._portion)
                except ConnectionError:
                    count = 0
                self._hear(count)
        return list(unpack_messages(self._heard))

    # an event loop

    async def ask(self, kind: str, *what: Any) -> Any:
        """Return what the other side answers. Raises ConnectionError where it goes meanwhile."""
        assert self._loop is not None
        number = next(self._numbers)
        answer = self._asked[number] = self._loop.create_future()
        self.say(ASK, number, kind, *what)
        try:
            return await answer
        finally:
            del self._asked[number]

    async def listen(self, heeds: Heeds) -> None:
        """Hand on what the other side says until it has gone. What is asked is answered by what ``heeds`` awaits."""
        assert self._loop is not None
        heeds = {**heeds, ANSWER: self._answered, ASK: partial(self._answer, heeds)}
        while self.open:
            try:
                count = await self._loop.sock_recv_into(self._end, self._portion)
            except ConnectionError:
                count = 0
            self._hear(count)
            for kind, *what in unpack_messages(self._heard):
                heeds[kind](*what)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError("the other process has ended"))
        self._loop.remove_writer(self._end)
        self._end.close()

    def _hear(self, count: int) -> None:
        self._heard += self._portion[:count]
        self.open = self.open and count > 0

    def _answered(self, number: int, answer: Any) -> None:
        if (asked := self._asked.get(number)) and not asked.done():
            asked.set_result(answer)

    def _answer(self, heeds: Heeds, number: int, kind: str, *what: Any) -> None:
        async def answer() -> None:
            self.say(ANSWER, number, await heeds[kind](*what))

        answering = asyncio.create_task(answer())
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)
