"""The engine as the API server process sees it, at the other end of a pair of sockets: a call's requests go over
together, and their outputs come back to the call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.types import Receive

from osd.server.core.ipc import Endpoint
from osd.server.core.messages import ClientJob, JobOutput, job_output
from osd.server.errors import ApiError, Busy, DeadlineExceeded, Draining, EngineFailed
from storage.records import Request

Arrived = tuple[int, JobOutput]
"""The number of a request in its call, and what came for it."""


class EngineClient:
    """The client of the decode thread. Belongs to one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.alive = True
        self._endpoint = endpoint
        self._jobs: dict[str, ClientJob] = {}

    def submit(self, jobs: Sequence[ClientJob]) -> None:
        """Send jobs over. Where they find no room an output says so. Raises EngineFailed."""
        if not self.alive:
            raise EngineFailed()
        self._jobs |= {job.request.id: job for job in jobs}
        self._endpoint.say("submit", [(job.request, job.pause, job.top) for job in jobs])

    def end(self, job: ClientJob, why: ApiError | None = None) -> None:
        """End a job; ``why`` is the error to report, if any."""
        if job.request.id in self._jobs:
            self._endpoint.say("end", job.request.id, why)
            if why is None:
                del self._jobs[job.request.id]

    async def follow(self) -> None:
        """Hand on what comes over, until it does not decode any more: whoever waits is told."""
        await self._endpoint.listen({"outputs": self._take})
        self.alive = False
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            job.deliver(JobOutput(error=EngineFailed()))

    def _take(self, outputs: Sequence[tuple[str, list[Any]]]) -> None:
        for request_id, packed in outputs:
            if job := self._jobs.get(request_id):
                output = job_output(packed)
                if output.last:
                    del self._jobs[request_id]
                job.deliver(output)


class Call:
    """The submitted requests of one call, and what comes back for them. Open it with :func:`calling`."""

    def __init__(self, client: EngineClient, requests: Sequence[Request], top: int | None, pause: float) -> None:
        self._client, self._open = client, set(range(len(requests)))
        self._arrived: list[Arrived | None] = []
        """What was not read yet; None once the client has gone."""
        self._ready = asyncio.Event()
        self.jobs = [ClientJob(request, partial(self._put, i), pause, top) for i, request in enumerate(requests)]
        self.begun = time.perf_counter()
        self.first: float | None = None
        """Seconds to the first token."""
        self.seconds: float | None = None
        """Seconds to the newest token."""
        self.emitted = 0
        self.refused = False
        """Whether it was refused before it entered the queue."""

    async def outputs(self, key_error: Callable[[], ApiError | None]) -> AsyncIterator[list[Arrived]]:
        """Yield what comes until every request is finished: the first at once, then in portions. ``key_error`` says
        whether the caller may still ask.

        Raises ApiError; ends early when the client has gone.
        """
        while self._open:
            some, error = await self._take(), key_error()
            good: list[Arrived] = []
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
            if None in some:
                return

    def _put(self, index: int, output: JobOutput) -> None:
        self._arrived.append((index, output))
        self._ready.set()

    async def _take(self) -> list[Arrived | None]:
        """Take everything that has come, waiting until there is something."""
        await self._ready.wait()
        self._ready.clear()
        arrived, self._arrived = self._arrived, []
        return arrived

    def _count(self, index: int, output: JobOutput) -> None:
        if output.finish_reason:
            self._open.discard(index)
        self.emitted += len(output.tokens)
        if output.tokens:
            self.seconds = time.perf_counter() - self.begun
            self.first = self.seconds if self.first is None else self.first

    async def watch(self, receive: Receive) -> None:
        """Give up when the client goes."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._arrived.append(None)
        self._ready.set()

    def end(self, why: ApiError | None = None) -> None:
        """End the requests that are still running or waiting."""
        for index in self._open:
            self._client.end(self.jobs[index], why)


@asynccontextmanager
async def calling(
    client: EngineClient, receive: Receive, requests: Sequence[Request], *, top: int | None = None,
    seconds: float | None = None, pause: float = 0.0,
) -> AsyncIterator[Call]:  # fmt: skip
    """Submit requests; at the end, after ``seconds``, or when the client goes away, unfinished ones leave the batch.

    ``pause`` is seconds between two portions of tokens. Raises EngineFailed.
    """
    call, loop = Call(client, requests, top, pause), asyncio.get_running_loop()
    client.submit(call.jobs)
    watching = asyncio.create_task(call.watch(receive))
    deadline = None if seconds is None else loop.call_later(seconds, call.end, DeadlineExceeded())
    try:
        yield call
    finally:
        watching.cancel()
        if deadline:
            deadline.cancel()
        call.end()
