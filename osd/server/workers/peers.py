"""What the serving processes behind one port know of each other: each answers the others over a Unix socket, in a
folder that is theirs alone."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

PEER_SECONDS = 2.0
"""How long another process may take to answer."""
LOAD, METRICS = b"load\n", b"metrics\n"


class WorkerLoad(NamedTuple):
    """What a serving process has to do."""

    serving: bool
    """False while it drains."""
    running: int
    """Requests in its engine."""
    waiting: int
    """Requests in its line."""


class Peers:
    """The processes behind a port as one of them, the one with this number, sees them."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number
        self.socket = folder / f"{number}.sock"
        self._lead = os.open(folder / "lead", os.O_RDWR | os.O_CREAT)

    @property
    def serving(self) -> bool:
        """Whether this process has begun to serve and not ended."""
        return self.socket.exists()

    def leads(self) -> bool:
        """Return whether this process answers the admin port: the one that holds the lock, which ends with its
        process."""
        with suppress(OSError):
            fcntl.lockf(self._lead, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    async def answer(self, metrics: Callable[[], Awaitable[bytes]], load: Callable[[], WorkerLoad]) -> asyncio.Server:
        """Let the others ask what this process has measured, and what it has to do."""

        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                asked = await reader.readline()
                writer.write(json.dumps(load()).encode() if asked == LOAD else await metrics())
                await writer.drain()
            writer.close()

        return await asyncio.start_unix_server(reply, self.socket)

    async def loads(self) -> list[WorkerLoad]:
        """Return what the others have to do."""
        return [WorkerLoad(*json.loads(text)) for text in (await self._ask(LOAD)).values()]

    async def metrics(self) -> dict[int, bytes]:
        """Return what the others have measured, by their numbers; without those that do not answer in time."""
        return await self._ask(METRICS)

    async def _ask(self, what: bytes) -> dict[int, bytes]:
        others = [path for path in self.folder.glob("*.sock") if path != self.socket]
        answers = await asyncio.gather(*(_ask_one(path, what) for path in others))
        return {int(path.stem): text for path, text in zip(others, answers, strict=True) if text}

    def leave(self) -> None:
        """Remove this process's socket: it has ended, or is about to, and nobody asks it any more."""
        self.socket.unlink(missing_ok=True)


async def _ask_one(path: Path, what: bytes) -> bytes:
    """Return the answer; nothing where there is none in time."""
    try:
        async with asyncio.timeout(PEER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(what)
            text = await reader.read()
            writer.close()
            return text
    except (OSError, TimeoutError) as error:
        log.warning("worker %s does not answer: %s", path.stem, error, extra={"action": "peer_silent"})
        return b""
