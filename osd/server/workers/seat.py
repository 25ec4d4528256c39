"""One server's place among those behind one port. Both of its processes have it: the one that answers HTTP accepts
connections and writes how many there are, the one that decodes does the rest."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from osd.server.workers.accepting import SharedSocket
from osd.server.workers.board import Board, Line, Phase

log = logging.getLogger(__name__)

TELL_SECONDS = 0.05
PEER_SECONDS = 2.0
"""How long another process may take to say what it has measured."""


class Seat:
    """Used by the event loop's thread."""

    def __init__(self, folder: Path, number: int, seats: int, pid: int) -> None:
        """``folder`` is shared by all of them, and by nobody else."""
        self.folder, self.number, self.pid = folder, number, pid
        self.board = Board(folder, seats)
        self._leads = False
        self.write(**Line(pid, Phase.STARTING)._asdict())

    # the board

    def write(self, **changes: int) -> None:
        """Of one's own line."""
        self.board.write(self.number, **changes)

    @property
    def line(self) -> Line:
        """One's own."""
        return self.board.read()[self.number]

    async def follow(self, look: Callable[[], Mapping[str, int]]) -> None:
        """Write what ``look`` finds, again and again."""
        while True:
            self.write(**look())
            await asyncio.sleep(TELL_SECONDS)

    def others(self) -> list[Line]:
        """The processes beside this one that serve."""
        lines = self.board.read()
        return [line for seat, line in enumerate(lines) if seat != self.number and line.phase == Phase.SERVING]

    def all(self) -> list[Line]:
        """Those that serve or drain, this one included."""
        return [line for line in self.board.read() if line.phase >= Phase.SERVING]

    # connections

    def share(self, bound: socket.socket) -> SharedSocket:
        """The socket as this process accepts from it."""
        return SharedSocket(bound, self._is_behind, self._take)

    def _is_behind(self) -> bool:
        line = self.line
        return any(line.is_behind(other) for other in self.others())

    def _take(self) -> None:
        self.write(connections=self.line.connections + 1, taken_at=time.monotonic_ns())

    # the admin port

    def leads(self) -> bool:
        """Whether this process answers the admin port: the one that holds the lock, which ends with its process."""
        if not self._leads:
            with suppress(OSError):
                fcntl.lockf(self.board.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._leads = True
        return self._leads

    # what each has measured

    def _place(self, number: int) -> Path:
        return self.folder / f"{number}.sock"

    async def expose(self, text: Callable[[], Awaitable[bytes]]) -> asyncio.Server:
        """Let the others read what this process has measured."""

        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await text())
            with suppress(ConnectionError):
                await writer.drain()
            writer.close()

        self._place(self.number).unlink(missing_ok=True)
        return await asyncio.start_unix_server(answer, self._place(self.number))

    async def measured(self) -> dict[int, bytes]:
        """By seat, what the others have measured; without those that do not answer in time."""
        numbers = [
            seat for seat, line in enumerate(self.board.read()) if seat != self.number and line.phase >= Phase.SERVING
        ]
        texts = await asyncio.gather(*(self._ask(number) for number in numbers))
        return {number: text for number, text in zip(numbers, texts, strict=True) if text is not None}

    async def _ask(self, number: int) -> bytes | None:
        try:
            async with asyncio.timeout(PEER_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._place(number))
                text = await reader.read()
                writer.close()
                return text
        except (OSError, TimeoutError) as error:
            log.warning("worker %d does not say what it measured: %s", number, error, extra={"action": "peer_silent"})
            return None

    def close(self) -> None:
        """The process ends in order."""
        self.write(phase=Phase.EMPTY, connections=0, running=0, waiting=0)
        self._place(self.number).unlink(missing_ok=True)
        self.board.close()
