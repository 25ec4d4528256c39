"""What the process that answers HTTP and the one that decodes say to each other, over a pair of sockets.

What is said between two turns of the event loop leaves in one write.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from osd.server.process.message import LENGTH, message_of, packed_message

ANSWER = "answer"


class Link:
    """One end. Belongs to one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._said: list[bytes] = []
        self._asked: dict[int, asyncio.Future[str]] = {}
        self._numbers = itertools.count()

    @classmethod
    async def over(cls, end: socket.socket) -> Link:
        """An end of a pair."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def say(self, kind: str, *what: Any) -> None:
        """To the other side; nothing where that has gone."""
        if not self._said:
            self._loop.call_soon(self._flush)
        self._said.append(packed_message(kind, what))

    def _flush(self) -> None:
        said, self._said = self._said, []
        if not self._writer.is_closing():
            self._writer.write(b"".join(said))

    async def ask(self, kind: str, *what: Any) -> str:
        """Say something, and wait for its answer. Raises ConnectionError where the other side goes meanwhile."""
        number = next(self._numbers)
        answer: asyncio.Future[str] = self._loop.create_future()
        self._asked[number] = answer
        self.say(kind, number, *what)
        try:
            return await answer
        finally:
            del self._asked[number]

    async def listen(self, heed: Callable[[str, list[Any]], None]) -> None:
        """Hand on what the other side says, kind by kind, until it has gone."""
        async for kind, *what in self._messages():
            if kind != ANSWER:
                heed(kind, what)
            elif (asked := self._asked.get(what[0])) and not asked.done():
                asked.set_result(what[1])
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ConnectionResetError("the other process has ended"))
        self._writer.close()

    async def _messages(self) -> AsyncIterator[list[Any]]:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                yield message_of(await self._reader.readexactly(length))

    async def close(self) -> None:
        """Once what was said has left."""
        self._flush()
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
