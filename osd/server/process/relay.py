"""What the process that decodes says to the one that answers HTTP, and hears of it; but for jobs, which go straight to
the thread that decodes (:mod:`osd.server.process.engine_thread`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from osd.server.process.link import ANSWER, Link

MEASURE_SECONDS = 1.0
"""How long the other process may take to say what it has measured: less than a peer waits for the two of us."""


class Relay:
    """Belongs to one event loop."""

    def __init__(self, link: Link, measure: Callable[[bytes], Awaitable[bytes]]) -> None:
        """``measure``: the whole of GET /metrics, given what the other process has measured."""
        self.link, self.listens = link, asyncio.Event()
        """Whether the other process listens for HTTP."""
        self._measure = measure
        self._answering: set[asyncio.Task[None]] = set()
        self._heeds: dict[str, Callable[..., None]] = {"metrics": self._metrics, "listening": self.listens.set}

    async def follow(self) -> None:
        """Until the other process has gone."""
        await self.link.listen(lambda kind, what: self._heeds[kind](*what))

    async def measured(self) -> bytes | None:
        """What the other process has measured; None where it does not say in time."""
        try:
            async with asyncio.timeout(MEASURE_SECONDS):
                return (await self.link.ask("measure")).encode()
        except (ConnectionError, TimeoutError):
            return None

    def _metrics(self, number: int, text: str) -> None:
        async def answer() -> None:
            self.link.say(ANSWER, number, (await self._measure(text.encode())).decode())

        answering = asyncio.create_task(answer())
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)
