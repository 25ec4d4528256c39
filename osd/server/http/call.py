"""The requests that one call became, and their tokens as they arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.requests import Request as HttpRequest

from osd.server.core.client import EngineClient, Inbox
from osd.server.core.messages import Job, JobOutput
from osd.server.errors import ApiError, Busy, DeadlineExceeded, Draining
from osd.server.http.keys import Caller, KeyRing
from storage.records import Request

Arrived = tuple[int, JobOutput]


class Call:
    """The submitted requests of one call. Open it with :func:`flying`."""

    def __init__(self, thread: EngineClient, requests: Sequence[Request], top: int | None, pause: float) -> None:
        self._thread = thread
        self._inbox: Inbox[Arrived | None] = Inbox()
        self._open = set(range(len(requests)))
        self.jobs = [Job(request, self._receiver(i), pause, top=top) for i, request in enumerate(requests)]
        self.begun = time.perf_counter()
        self.first: float | None = None
        """Seconds to the first token."""
        self.seconds: float | None = None
        """Seconds to the newest token."""
        self.emitted = 0
        self.refused = False
        """Whether it was refused before it entered the queue."""

    def _receiver(self, index: int) -> Callable[[JobOutput], None]:
        return lambda piece: self._inbox.put((index, piece))

    async def pieces(self, caller: Caller, ring: KeyRing) -> AsyncIterator[list[Arrived]]:
        """Yield tokens until every request is finished: the first at once, then in portions.

        Raises ApiError; ends early when the client has gone.
        """
        while self._open:
            good: list[Arrived] = []
            some, error = await self._inbox.take(), ring.check(caller)
            gone = None in some
            for arrived in some:
                if arrived is None or (error := error or arrived[1].error):
                    break
                self._count(*arrived)
                good.append(arrived)
            if good:
                yield good
            if error:
                self.refused = self.first is None and isinstance(error, (Busy, Draining))
                raise error
            if gone:
                return

    def _count(self, index: int, piece: JobOutput) -> None:
        if piece.done:
            self._open.discard(index)
        self.emitted += len(piece.tokens)
        if piece.tokens:
            self.seconds = time.perf_counter() - self.begun
            self.first = self.seconds if self.first is None else self.first

    def abandon(self) -> None:
        """Give up: the client has gone."""
        self._inbox.put(None)

    def end(self, why: ApiError | None = None) -> None:
        """End the requests that are still running or waiting."""
        for index in self._open:
            self._thread.end(self.jobs[index], why)


@asynccontextmanager
async def flying(
    thread: EngineClient,
    http: HttpRequest,
    requests: Sequence[Request],
    *,
    top: int | None = None,
    seconds: float | None = None,
    pause: float = 0.0,
) -> AsyncIterator[Call]:
    """Submit requests; at the end, or when the client goes away, unfinished ones leave the batch.

    ``pause`` is seconds between two portions of tokens. Raises EngineFailed.
    """
    flight, loop = Call(thread, requests, top, pause), asyncio.get_running_loop()
    thread.submit(flight.jobs)
    watch = asyncio.create_task(_watch(http, flight))
    deadline = None if seconds is None else loop.call_later(seconds, flight.end, DeadlineExceeded())
    try:
        yield flight
    finally:
        watch.cancel()
        if deadline:
            deadline.cancel()
        flight.end()


async def _watch(http: HttpRequest, flight: Call) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
    flight.abandon()
