"""A server with OpenAI's API that does as it is told: it answers, waits, breaks off, talks nonsense.

It speaks HTTP by hand over a socket of its own thread, so that it can break every rule. What it was asked is kept.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Asked:
    """One request that came."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes
    gone: threading.Event = field(default_factory=threading.Event)
    """Set once the other side has closed the connection while it was answered."""

    @property
    def json(self) -> dict[str, Any]:
        """The body."""
        found: dict[str, Any] = json.loads(self.body)
        return found


Answer = Callable[[asyncio.StreamWriter, Asked], Awaitable[None]]


def chunk(number: int) -> bytes:
    """Event ``number`` of a stream, as vLLM would send it."""
    text = json.dumps({"id": "cmpl-1", "choices": [{"index": 0, "text": f" t{number}", "finish_reason": None}]})
    return b"data: " + text.encode() + b"\n\n"


USAGE = b'data: {"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":5,"total_tokens":9,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"


def head(status: int, headers: dict[str, str]) -> bytes:
    """A response's head."""
    lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def say(status: int, body: Any = None, **headers: str) -> Answer:
    """A whole answer."""

    async def answer(writer: asyncio.StreamWriter, asked: Asked) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        facts = {"content-type": "application/json", "content-length": str(len(content)), **named}
        writer.write(head(status, facts) + content)

    return answer


def stream(count: int = 4, pause: float = 0.0, breaks: bool = False) -> Answer:
    """A stream of ``count`` events, ``pause`` seconds apart; it ``breaks`` off after them, or ends as it should."""

    async def answer(writer: asyncio.StreamWriter, asked: Asked) -> None:
        usage = (asked.json.get("stream_options") or {}).get("include_usage")
        writer.write(head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
        await writer.drain()
        for number in range(count):
            _put(writer, chunk(number))
            await writer.drain()
            await asyncio.sleep(pause)
        if breaks:
            writer.transport.abort()
            return
        for event in [USAGE] * bool(usage) + [DONE, b""]:
            _put(writer, event)

    return answer


def _put(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


async def hang_up(writer: asyncio.StreamWriter, asked: Asked) -> None:
    """Close the connection without a word."""
    writer.transport.abort()


async def babble(writer: asyncio.StreamWriter, asked: Asked) -> None:
    """Say what is no HTTP."""
    writer.write(b"220 mail.example ESMTP\r\n\r\n\xff\x00 nonsense\r\n")
    writer.close()


def held(gate: threading.Event, then: Answer) -> Answer:
    """Answer once the gate is opened."""

    async def answer(writer: asyncio.StreamWriter, asked: Asked) -> None:
        while not gate.is_set():
            await asyncio.sleep(0.005)
        await then(writer, asked)

    return answer


async def wait_for_ever(writer: asyncio.StreamWriter, asked: Asked) -> None:
    """Never answer."""
    await asyncio.sleep(3600)


HELLO = say(200, {"choices": [{"text": "hello"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


class FakeReplica:
    """The server. ``answer`` is what it does with what is no question about itself; it may be changed at any time."""

    def __init__(self) -> None:
        self.port = 0
        self.reset()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    def reset(self) -> None:
        """Be as in the beginning."""
        self.answer: Answer = HELLO
        self.model, self.owner, self.health, self.ready = "target", "vllm", 200, 404
        self.asked: list[Asked] = []
        """What came, but for questions about itself."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the same port as before if there was one; nothing where it listens already."""
        if self._server is None:
            self._run(self._start())

    def stop(self) -> None:
        """End as a killed process does: nobody listens, and every connection is cut."""
        self._run(self._stop())

    def run(self) -> None:
        """Work, on a thread of its own, until :meth:`end`."""
        self._loop.run_forever()
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.run_until_complete(asyncio.sleep(0.01))  # connections that were cut are closed now
        self._loop.close()

    def end(self) -> None:
        """End the thread's work."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server:
            self._server.close()
        self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._converse(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            asked = await _read(reader)
            about = {"/health": say(self.health), "/ready": say(self.ready), "/v1/models": say(200, self._models())}
            if asked.path not in about:
                self.asked.append(asked)
                await self._answer(self.answer, reader, writer, asked)
            else:
                await about[asked.path](writer, asked)
            await writer.drain()

    async def _answer(
        self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: Asked
    ) -> None:
        """Answer, and notice when the other side goes meanwhile: it sends nothing else until it has its answer."""
        work, gone = asyncio.ensure_future(answer(writer, asked)), asyncio.ensure_future(_ended(reader))
        done, _ = await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if work not in done or isinstance(work.exception(), ConnectionError):
            asked.gone.set()
            work.cancel()
            raise ConnectionError

    def _models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": self.owner}]}


async def _ended(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof():
        await asyncio.sleep(0.005)


async def _read(reader: asyncio.StreamReader) -> Asked:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    return Asked(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


@contextmanager
def replica() -> Iterator[FakeReplica]:
    """Run one until the block ends."""
    made = FakeReplica()
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    made.start()
    try:
        yield made
    finally:
        made.stop()
        made.end()
        thread.join()
