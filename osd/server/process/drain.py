"""How a server ends: on a signal, or because the database asks.

The first SIGTERM or Ctrl-C drains: new requests are refused, running ones may finish within ``server.drain_seconds``. A
second one is final. `osd servers drain` does the same through the database, and can be undone while something runs.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Protocol

from osd.server.process.listener import LAST_SECONDS

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
"""Interval at which a server checks whether it listens, and whether its last requests have ended."""


class Drainable(Protocol):
    """What can be drained."""

    @property
    def busy(self) -> bool:
        """Whether a request runs or waits."""

    async def leave(self, asked: bool) -> None:
        """Make sure that no new request comes; ``asked`` by the database, not by a signal."""

    def say(self, drains: bool) -> None:
        """Tell everybody that it drains, or serves again."""

    def cut_off(self) -> None:
        """End the requests that run."""

    def stop(self, force: bool) -> None:
        """Stop listening; with ``force`` without waiting for answers."""


class ServerDrain:
    """The end of a server that lives for ``seconds`` after it was told."""

    def __init__(self, server: Drainable, seconds: float) -> None:
        self.status = 0
        """What the process exits with."""
        self._server, self._seconds = server, seconds
        self._draining: asyncio.Task[None] | None = None
        self._asked = False
        """Whether it drains because the database asked for it, which may be undone."""

    def take_signals(self) -> None:
        """Answer SIGTERM and SIGINT from here on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    def wish(self, drains: bool) -> None:
        """Begin or end draining on request of the database."""
        if drains and self._draining is None:
            self._begin(asked=True)
        elif not drains and self._asked and self._draining is not None:
            self._draining.cancel()
            self._draining, self._asked = None, False
            self._say(drains=False)

    def _signalled(self, number: int) -> None:
        if self._draining is None:
            self._begin(asked=False)
        elif self._asked:
            self._asked = False  # it drains in any case now; the next signal is final
        else:
            self.status = 128 + number
            self._server.cut_off()
            self._server.stop(force=True)

    def _begin(self, *, asked: bool) -> None:
        self._asked = asked
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        """Refuse what is new, wait for what runs, then end it."""
        await self._server.leave(self._asked)
        self._say(drains=True)
        if not await self._idle(self._seconds):
            log.warning("requests were cut off: they took too long", extra={"action": "drain_ended"})
            self._server.cut_off()
            await self._idle(LAST_SECONDS)
        self._asked = False
        self._server.stop(force=False)

    def _say(self, *, drains: bool) -> None:
        self._server.say(drains)
        log.info("draining" if drains else "serving again", extra={"action": "draining" if drains else "drain_undone"})

    async def _idle(self, seconds: float) -> bool:
        """Wait until nothing runs or waits; return False when the time ran out."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._server.busy:
            if loop.time() >= until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True
