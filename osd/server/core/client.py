"""The thread that decodes, as the process that answers HTTP sees it: at the other end of a pair of sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from osd.server.core.ipc import Endpoint
from osd.server.core.messages import Job, JobOutput, job_output
from osd.server.errors import ApiError, EngineFailed

T = TypeVar("T")


class Inbox(Generic[T]):
    """An asynchronous inbox. Belongs to one event loop."""

    def __init__(self) -> None:
        self._things: list[T] = []
        self._ready = asyncio.Event()

    def put(self, thing: T) -> None:
        """Put a thing in."""
        self._things.append(thing)
        self._ready.set()

    async def take(self) -> list[T]:
        """Take everything that has come, waiting until there is something."""
        await self._ready.wait()
        self._ready.clear()
        things, self._things = self._things, []
        return things


class EngineClient:
    """The client of the decode thread. Belongs to one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.alive = True
        self._endpoint = endpoint
        self._jobs: dict[str, Job] = {}

    def submit(self, jobs: Sequence[Job]) -> None:
        """Send jobs over. Where they find no room an output says so. Raises EngineFailed."""
        if not self.alive:
            raise EngineFailed()
        self._jobs |= {job.request.id: job for job in jobs}
        self._endpoint.say("submit", [(job.request, job.pause, job.top) for job in jobs])

    def end(self, job: Job, why: ApiError | None = None) -> None:
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
