"""One client's requests, as lean as they can be: bytes and when they came; what they say is read when the load is over.

A client that parses every event as it comes takes the server's cores while the server is measured.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import accumulate
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from osd.bench.serve.requests import ServeJob

PATIENCE = 600.0
DONE = "[DONE]"
GOOD = re.compile(rb"HTTP/\S+ 200 ")
BLANK = b"\r\n\r\n"
LAST_CHUNK = b"\r\n0\r\n\r\n"
EVENT = b"data: "
NEAR = 4
"""Into so many pieces head and last chunk may fall."""
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
Json = dict[str, Any]


class Address(NamedTuple):
    """Where, and what goes into every body."""

    url: str
    extra: tuple[tuple[str, Any], ...] = ()
    text: Any = None
    """What makes a server's own prompt of tokens, where it takes none: a function from tokens to text."""

    def request(self, job: ServeJob) -> bytes:
        """The whole request."""
        prompt = list(job.prompt) if self.text is None else self.text(job.prompt)
        body = json.dumps({
            "prompt": prompt, "max_tokens": job.tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, **dict(self.extra),
        }).encode()  # fmt: skip
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {urlsplit(self.url).netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@dataclass(slots=True)
class Reply:
    """One streamed answer, as its client saw it."""

    begun: float
    """Seconds of ``time.perf_counter``, as all times here."""
    times: list[float] = field(default_factory=list)
    """When data came, from the first event on."""
    tokens: int = 0
    version: str | None = None
    """The draft version that its last event names."""
    error: str | None = None
    """Why it is none."""

    @property
    def first_ms(self) -> float:
        """To the first event."""
        return 1000 * (self.times[0] - self.begun)

    @property
    def per_token_ms(self) -> float | None:
        """Mean time between its tokens after the first."""
        return 1000 * (self.times[-1] - self.times[0]) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps_ms(self) -> list[float]:
        """Between events, each of which has the tokens of one round."""
        return [1000 * (b - a) for a, b in zip(self.times, self.times[1:], strict=False)]

    def tokens_by(self, moment: float) -> float:
        """Its tokens up to then: as many of all as of its data had come."""
        return self.tokens * sum(at <= moment for at in self.times) / len(self.times) if self.times else 0.0


class Collected(NamedTuple):
    """An answer that nobody has read."""

    begun: float
    times: Sequence[float] = ()
    data: Sequence[bytes] = ()
    error: str | None = None
    """Why there is none."""


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


class Client:
    """Somebody who asks again and again, on one connection as long as the other side keeps it, as the usual clients
    do."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.gone = False
        """Whether it has left before its answer began."""
        self._connection: Connection | None = None

    async def collect(self, job: ServeJob) -> Collected:
        """One answer, to be read later. Who is refused asks on a new connection the next time."""
        request, begun = self.address.request(job), time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE):
                connection = self._connection = await self._connected()
                times, data = await connection.exchange(request)
        except OSError as error:  # TimeoutError is one
            self.close()
            return Collected(begun, error=str(error) or type(error).__name__)
        if not (data and GOOD.match(data[0])):
            self.close()
        return Collected(begun, times, data)

    def leave(self) -> None:
        """Wait no longer for an answer that has not begun."""
        if self._connection and not self._connection.heard:
            self.gone = True
            self._connection.close()

    def close(self) -> None:
        """End the connection."""
        if self._connection:
            self._connection.close()
        self._connection = None

    async def _connected(self) -> Connection:
        if self._connection and self._connection.usable:
            return self._connection
        where = urlsplit(self.address.url)
        host, port = where.hostname or "127.0.0.1", where.port or http.client.HTTP_PORT
        _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
        return connection


async def ask(address: Address, job: ServeJob) -> Reply:
    """One answer to somebody who asks once. A request that fails is a reply with its ``error``."""
    client = Client(address)
    try:
        return read_reply(await client.collect(job))
    finally:
        client.close()


def read_reply(collected: Collected) -> Reply:
    """What was collected, understood."""
    begun, times, data, error = collected
    if error:
        return Reply(begun, error=error)
    reply = Reply(begun, list(times[first_event(data) or 0 :]))
    try:
        _understand(reply, b"".join(data))
    except (OSError, http.client.HTTPException, ValueError) as error:
        reply.error = f"{type(error).__name__}: {error}"
    return reply


def _understand(reply: Reply, data: bytes) -> None:
    """Raises HTTPException and ValueError where the answer is not whole."""
    answer = http.client.HTTPResponse(_Bytes(data))  # type: ignore[arg-type]
    answer.begin()
    text = answer.read().decode()
    if answer.status != http.HTTPStatus.OK:
        raise ValueError(f"status {answer.status}, {text[:200]}")
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    said: list[Json] = [json.loads(event) for event in events if event != DONE]
    if wrong := next((event["error"] for event in said if event.get("error")), None):
        raise ValueError(str(wrong))
    reply.tokens = next((event["usage"]["completion_tokens"] for event in reversed(said) if event.get("usage")), 0)
    reply.version = next((event["system_fingerprint"] for event in said if event.get("system_fingerprint")), None)
    if not reply.tokens:
        raise ValueError("no tokens were counted")


class _Bytes:
    """What HTTPResponse takes for a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> BytesIO:
        return BytesIO(self._data)
