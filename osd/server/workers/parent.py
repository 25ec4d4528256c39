"""Starts the processes behind one port, watches them, and starts dead ones anew.

It holds the two listening sockets, so that no connection is lost that no process has accepted, and loads no model. A
signal goes on to all of them, each in a session of its own, so that Ctrl-C reaches them once. Their standard input is a
pipe that only the parent holds: when the parent is killed they see its end, and drain.
"""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from osd.server.process.listen import Ports
from osd.server.workers.board import Board, Line, Phase
from osd.server.workers.order import Order, Posting, packed

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
SHORTEST, LONGEST = 0.5, 30.0
"""Seconds before a process is started anew: twice as long each time."""
SETTLED_SECONDS = 60.0
"""One that has lived so long did not die of its start."""
OSD_ERRORS = range(2, 8)
"""Exit statuses of errors that say what is wrong: starting anew would not mend them."""


@dataclass(slots=True)
class Child:
    """One seat and who has it."""

    seat: int
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    """By time.monotonic."""
    due: float | None = 0.0
    """When to start it; None while it lives, or where it ended because it was told to."""
    failures: int = 0
    last: str | None = field(default=None)
    """The worker that had the seat and died."""


class Parent:
    """``ready`` is called once all of them serve."""

    def __init__(self, order: Order, ports: Ports, count: int, ready: Callable[[], object]) -> None:
        self.order, self.ports, self._ready = order, ports, ready
        self.folder = Path(tempfile.mkdtemp(prefix="osd-"))
        self.board = Board(self.folder, count)
        self.children = [Child(seat) for seat in range(count)]
        self._signals: list[int] = []
        self._all_served = self._stops = False
        self._status = 0

    def run(self) -> int:
        """Until all have ended; the exit status: 0 where they were told to, or that of an error at the start."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while self._live_or_due():
                self._start_due()
                self._see_ends()
                self._see_ready()
                time.sleep(POLL_SECONDS)
            return self._status
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._end()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        """A signal: the first drains, the second ends."""
        self._signals.append(number)
        if len(self._signals) > 1:
            self._status = 128 + number
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        self._stops = True
        for child in self.children:
            child.due = None
            if child.process and child.process.poll() is None:
                child.process.send_signal(number)

    def _live_or_due(self) -> bool:
        return any(child.process or child.due is not None for child in self.children)

    def _start_due(self) -> None:
        for child in self.children:
            if child.due is not None and time.monotonic() >= child.due:
                self._start(child)
                if self._stops:  # a signal came while the process was being made
                    self._pass_on(signal.SIGTERM)

    def _start(self, child: Child) -> None:
        sockets = self.ports.api.fileno(), self.ports.admin.fileno()
        posting = Posting(child.seat, len(self.children), str(self.folder), *sockets, replaces=child.last)
        child.due, child.started = None, time.monotonic()
        child.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "osd.server.workers.child", packed(self.order, posting)],
            stdin=subprocess.PIPE, pass_fds=sockets, start_new_session=True,
        )  # fmt: skip

    def _see_ends(self) -> None:
        for child in self.children:
            if child.process and (status := child.process.poll()) is not None:
                self._ended(child, child.process, status)

    def _ended(self, child: Child, process: subprocess.Popen[bytes], status: int) -> None:
        self.board.write(child.seat, **Line()._asdict())
        if process.stdin:
            process.stdin.close()
        child.process = None
        if status == 0 or self._stops:
            return
        if status in OSD_ERRORS and not self._all_served:
            self._status = self._status or status
            self._pass_on(signal.SIGTERM)
            return
        child.failures = 0 if time.monotonic() - child.started > SETTLED_SECONDS else child.failures + 1
        rest = 0.0 if not child.failures else min(LONGEST, SHORTEST * 2 ** (child.failures - 1))
        child.due, child.last = time.monotonic() + rest, f"{socket.gethostname()}:{process.pid}"
        how = f"status {status}" if status > 0 else f"signal {-status}"
        log.error(
            "worker %d (process %d) ended with %s; another is started in %.1f s", child.seat, process.pid, how, rest,
            extra={"action": "worker_died"},
        )  # fmt: skip

    def _see_ready(self) -> None:
        if not self._all_served and all(line.phase == Phase.SERVING for line in self.board.read()):
            self._all_served = True
            self._ready()

    def _end(self) -> None:
        """Nothing stays behind."""
        for child in self.children:
            if child.process and child.process.poll() is None:
                child.process.kill()
                child.process.wait()
        self.board.close()
        shutil.rmtree(self.folder, ignore_errors=True)
