"""Several server processes behind one port: started and watched by one parent, which starts dead ones anew, and asking
each other for their numbers.

They are forked from the parent, which has the modules and no model, each in a session of its own, so that Ctrl-C
reaches them once. Each listens by a socket of its own (:func:`osd.server.process.listen.share`), and Linux gives every
new connection to one of those. When the parent is killed the system sends them SIGTERM, and they drain. Each answers
the others over a Unix socket, in a folder that is theirs alone.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from storage.errors import OsdError

log = logging.getLogger(__name__)

PEER_SECONDS = 2.0
"""How long another process may take to answer."""
LOAD, METRICS = b"load\n", b"metrics\n"
POLL_SECONDS = 0.05
SHORTEST, LONGEST = 0.5, 30.0
"""Seconds before a process is started anew: twice as long each time."""
SETTLED_SECONDS = 60.0
"""One that has lived so long did not die of its start."""
OSD_ERRORS = range(2, 8)
"""Exit statuses of errors that say what is wrong: starting anew would not mend them."""
PR_SET_PDEATHSIG = 1


class ServerLoad(NamedTuple):
    """What a server has to do."""

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

    async def answer(self, metrics: Callable[[], Awaitable[bytes]], load: Callable[[], ServerLoad]) -> asyncio.Server:
        """Let the others ask what this process has measured, and what it has to do."""

        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                asked = await reader.readline()
                writer.write(json.dumps(load()).encode() if asked == LOAD else await metrics())
                await writer.drain()
            writer.close()

        return await asyncio.start_unix_server(reply, self.socket)

    async def loads(self) -> list[ServerLoad]:
        """Return what the others have to do."""
        return [ServerLoad(*json.loads(text)) for text in (await self._ask(LOAD)).values()]

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
        log.warning("server %s does not answer: %s", path.stem, error, extra={"action": "peer_silent"})
        return b""


Work = Callable[[Peers, str | None], int]
"""Serves until it is told to stop, in place of a server that died, if one did; returns the exit status."""


@dataclass(slots=True)
class Child:
    """A server process, and those that had its place before."""

    peers: Peers
    process: ForkProcess | None = None
    started: float = 0.0
    """By time.monotonic."""
    due: float | None = 0.0
    """When to start it; None while it lives, or where it ended because it was told to."""
    failures: int = 0
    last: str | None = None
    """The server that had the place and died."""


class Supervisor:
    """Runs ``count`` processes that do ``work``; ``ready`` is called once all of them serve."""

    def __init__(self, work: Work, count: int, ready: Callable[[], object]) -> None:
        self._work, self._ready = work, ready
        self._folder, self._pid = Path(tempfile.mkdtemp(prefix="osd-")), os.getpid()
        self.children = [Child(Peers(self._folder, number)) for number in range(count)]
        self._signals: list[int] = []
        self._heard = self._status = 0
        self._all_served = False

    def run(self) -> int:
        """Watch until all have ended; return 0 where they were told to, else the status of an error at the start."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while any(child.process or child.due is not None for child in self.children):
                self._hear_signals()
                for child in self.children:
                    self._look_after(child)
                if not self._all_served and all(child.peers.serving for child in self.children):
                    self._all_served = True
                    self._ready()
                time.sleep(POLL_SECONDS)
            return self._status
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._end()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _hear_signals(self) -> None:
        """Pass signals on: the first drains, the second ends."""
        for number in self._signals[self._heard :]:
            self._heard += 1
            if self._heard > 1:
                self._status = 128 + number
            self._stop()

    def _stop(self) -> None:
        for child in self.children:
            child.due = None
            if child.process:
                child.process.terminate()

    def _look_after(self, child: Child) -> None:
        if child.due is not None and time.monotonic() >= child.due:
            child.due, child.started = None, time.monotonic()
            child.process = multiprocessing.get_context("fork").Process(target=self._become, args=(child,))
            child.process.start()
        elif child.process and (status := child.process.exitcode) is not None:
            self._ended(child, child.process, status)

    def _become(self, child: Child) -> None:
        """Serve, in the process that was forked."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave)  # before it listens there is nothing to drain
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if self._signals[self._heard :] or os.getppid() != self._pid:
            return  # a signal came, or the supervisor went, while the process was being made
        try:
            sys.exit(self._work(child.peers, child.last))
        except OsdError as error:
            print(f"osd: {error}", file=sys.stderr, flush=True)
            sys.exit(error.exit_code)

    def _ended(self, child: Child, process: ForkProcess, status: int) -> None:
        child.peers.leave()
        child.process = None
        if status == 0 or self._heard or self._status:
            return
        if status in OSD_ERRORS and not self._all_served:
            self._status = status
            self._stop()
            return
        child.failures = 0 if time.monotonic() - child.started > SETTLED_SECONDS else child.failures + 1
        rest = 0.0 if not child.failures else min(LONGEST, SHORTEST * 2 ** (child.failures - 1))
        child.due, child.last = time.monotonic() + rest, f"{socket.gethostname()}:{process.pid}"
        how = f"status {status}" if status > 0 else f"signal {-status}"
        log.error(
            "server %d (process %d) ended with %s; another is started in %.1f s", child.peers.number, process.pid, how,
            rest, extra={"action": "worker_died"},
        )  # fmt: skip

    def _end(self) -> None:
        """Leave nothing behind."""
        for child in self.children:
            if child.process:
                child.process.kill()
                child.process.join()
        shutil.rmtree(self._folder, ignore_errors=True)


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
