"""A client's connection, on which one answer after another is collected: bytes and when they came."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from itertools import accumulate

BLANK = b"\r\n\r\n"
LAST_CHUNK = b"\r\n0\r\n\r\n"
EVENT = b"data: "
NEAR = 4
"""Into so many pieces head and last chunk may fall."""
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """HTTP/1.1, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data: list[bytes] = []
        self._times: list[float] = []
        self._size: int | None = None
        """Bytes of the whole answer, where its head says so."""
        self._ended: asyncio.Future[None] | None = None

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def heard(self) -> bool:
        """Whether the first event of this answer has come."""
        return first_event(self._data) is not None

    async def exchange(self, request: bytes) -> tuple[list[float], list[bytes]]:
        """When the answer's data came, in seconds of ``time.perf_counter``, and the data. It is over where its length
        or its last chunk says so, or where the other side closes."""
        assert self._transport is not None
        self._data, self._times, self._size = [], [], None
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._ended
        return self._times, self._data

    def close(self) -> None:
        """At once."""
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._times.append(time.perf_counter())
        self._data.append(data)
        if self._whole():
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if self._ended and not self._ended.done():
            self._ended.set_result(None)

    def _whole(self) -> bool:
        tail = b"".join(self._data[-NEAR:])
        if tail.endswith(LAST_CHUNK):
            return True
        if self._size is None and len(self._data) <= NEAR:
            head, blank, _ = tail.partition(BLANK)
            found = LENGTH.search(head) if blank else None
            self._size = len(head) + len(BLANK) + int(found[1]) if found else None
        return self._size is not None and sum(map(len, self._data)) >= self._size


def first_event(data: Iterable[bytes]) -> int | None:
    """Which piece of an answer brings its first event, wherever it was cut."""
    return next((i for i, seen in enumerate(accumulate(data)) if EVENT in seen), None)
