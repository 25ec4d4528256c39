"""Where decoding and HTTP meet, on the side that decodes: jobs come over a link, pieces go back over it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from osd.server.cargo import error_of, job_of, packed_piece
from osd.server.engine_thread import EngineThread
from osd.server.errors import ApiError
from osd.server.job import Job
from osd.server.link import ANSWER, Link
from osd.server.piece import Piece

MEASURE_SECONDS = 1.0
"""How long the other process may take to say what it has measured: less than a peer waits for the two of us."""


class Relay:
    """Belongs to one event loop, that of the thread."""

    def __init__(self, link: Link, thread: EngineThread, measure: Callable[[bytes], Awaitable[bytes]]) -> None:
        """``measure``: the whole of GET /metrics, given what the other process has measured."""
        self.link, self.listens = link, asyncio.Event()
        """Whether the other process listens for HTTP."""
        self._thread, self._measure = thread, measure
        self._jobs: dict[str, Job] = {}
        self._pieces: list[tuple[str, list[Any]]] = []
        self._answering: set[asyncio.Task[None]] = set()
        self._heeds: dict[str, Callable[..., None]] = {
            "submit": self._submit, "end": self._end, "metrics": self._metrics, "listening": self.listens.set,
        }  # fmt: skip

    async def follow(self) -> None:
        """Until the other process has gone; nobody waits for its jobs then."""
        await self.link.listen(lambda kind, what: self._heeds[kind](*what))
        for job in self._jobs.values():
            self._thread.end(job)
        self._jobs.clear()

    async def measured(self) -> bytes | None:
        """What the other process has measured; None where it does not say in time."""
        try:
            async with asyncio.timeout(MEASURE_SECONDS):
                return (await self.link.ask("measure")).encode()
        except (ConnectionError, TimeoutError):
            return None

    def _submit(self, packed: Sequence[list[Any]]) -> None:
        jobs = [job_of(one, partial(self._deliver, one[0]["id"])) for one in packed]
        self._jobs |= {job.request.id: job for job in jobs}
        try:
            self._thread.submit(jobs)
        except ApiError as error:
            for job in jobs:
                job.deliver(Piece(error=error))

    def _end(self, request_id: str, why: list[Any] | None) -> None:
        if job := self._jobs.get(request_id):
            self._thread.end(job, error_of(why))
            if why is None:
                del self._jobs[request_id]

    def _deliver(self, request_id: str, piece: Piece) -> None:
        """All that comes at once goes over at once."""
        if request_id not in self._jobs:
            return
        if piece.last:
            del self._jobs[request_id]
        if not self._pieces:
            asyncio.get_running_loop().call_soon(self._send)
        self._pieces.append((request_id, packed_piece(piece)))

    def _send(self) -> None:
        pieces, self._pieces = self._pieces, []
        self.link.say("pieces", pieces)

    def _metrics(self, number: int, text: str) -> None:
        async def answer() -> None:
            self.link.say(ANSWER, number, (await self._measure(text.encode())).decode())

        answering = asyncio.create_task(answer())
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)
