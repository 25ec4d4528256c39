"""The client of the decode thread, in the process that answers HTTP, over a link of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osd.server.http.errors import ApiError, EngineFailed
from osd.server.process.cargo import packed_error, packed_job, piece_of
from osd.server.process.job import Job
from osd.server.process.link import Link
from osd.server.process.piece import Piece


class EngineClient:
    """The client of the decode thread. Belongs to one event loop."""

    def __init__(self, link: Link) -> None:
        self.alive = True
        self._link = link
        self._jobs: dict[str, Job] = {}

    def submit(self, jobs: Sequence[Job]) -> None:
        """Send jobs; a piece reports those for which there is no room. Raises EngineFailed."""
        if not self.alive:
            raise EngineFailed()
        self._jobs |= {job.request.id: job for job in jobs}
        self._link.say("submit", [packed_job(job) for job in jobs])

    def end(self, job: Job, why: ApiError | None = None) -> None:
        """End a job; ``why`` is the error to report, if any."""
        if job.request.id in self._jobs:
            self._link.say("end", job.request.id, packed_error(why))
            if why is None:
                del self._jobs[job.request.id]

    async def follow(self) -> None:
        """Dispatch incoming pieces until decoding ends; those that still wait are told."""
        await self._link.listen(lambda _, what: self._take(*what))
        self.alive = False
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            job.deliver(Piece(error=EngineFailed()))

    def _take(self, pieces: Sequence[tuple[str, list[Any]]]) -> None:
        for request_id, packed in pieces:
            if job := self._jobs.get(request_id):
                piece = piece_of(packed)
                if piece.last:
                    del self._jobs[request_id]
                job.deliver(piece)
