"""The one thread that steps the engine: requests in through a line, tokens out to the event loop once a step.

It never waits for HTTP, for the database or for the disk: what it shares with the event loop is a line of requests and
a list of those to end, behind a lock that nobody holds for longer than a list operation.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from osd.engine import Engine
from osd.machine import wake_promptly
from osd.row import Progress, Row
from osd.server.errors import ApiError, Busy, Draining, EngineFailed, Stopped, as_api_error
from osd.server.job import Job
from osd.server.line import Line
from osd.server.outbox import Outbox
from osd.server.piece import Done, Piece, joined
from osd.server.scores import Scores, score
from osd.verdict import Verdict
from storage.errors import OsdError

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.05
"""Without requests the engine is stepped so often: it has swaps to make, and routers to tell."""


class EngineThread:
    """Start it once; ``submit``, ``end`` and ``drain`` are the event loop's."""

    def __init__(self, engine: Engine, queue: int, failed: Callable[[], None]) -> None:
        """``queue`` requests may wait; ``failed`` is called on the event loop when decoding broke."""
        self.engine, self.draining = engine, False
        self.finished = 0
        """Requests that have ended, in whatever way, since it began."""
        self._failed, self._loop = failed, asyncio.get_running_loop()
        self._wake = threading.Condition()
        self._line: Line[Job] = Line(queue)
        self._to_end: list[Job] = []
        self._active: dict[str, Job] = {}
        self._outbox: Outbox[Job, Piece] = Outbox()
        self._notes: dict[str, tuple[Scores | None, str, str]] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="osd-decode", daemon=True)
        self._cores = torch.get_num_threads()
        engine.listener = self._listen

    def start(self) -> None:
        """Begin to decode."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._line)

    @property
    def running(self) -> int:
        """Requests in the engine."""
        return len(self._active)

    @property
    def alive(self) -> bool:
        """Whether it decodes."""
        return self._thread.is_alive()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Put jobs in line, all or none. Raises Draining and Busy."""
        if self.draining or self._closing:
            raise Draining(retry_after=5)
        pushed_out: list[Job] = []
        with self._wake:
            for number, job in enumerate(jobs):
                out = self._line.put(job.request.tenant, job)
                if out is job or out in jobs:
                    for earlier in jobs[: number + 1]:
                        self._line.remove(earlier.request.tenant, earlier)
                    raise _full()
                if out:
                    pushed_out.append(out)
            self._wake.notify()
        for job in pushed_out:
            job.deliver(Piece(error=_full()))

    def end(self, job: Job, why: ApiError | None = None) -> None:
        """Stop working for a job before the next step; with ``why`` it is told."""
        with self._wake:
            job.why = why
            self._to_end.append(job)
            self._wake.notify()

    def end_all(self) -> None:
        """End everything that runs or waits."""
        with self._wake:
            jobs = [*self._active.values(), *self._line.clear()]
            for job in jobs:
                job.why = Stopped()
            self._to_end += jobs
            self._wake.notify()

    def close(self, timeout: float | None = None) -> None:
        """Stop decoding."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)

    def _work(self) -> None:
        wake_promptly()
        torch.set_num_threads(self._cores)  # a new thread would begin with what the recorder's thread was given
        try:
            while not self._closing:
                self._round(*self._gather())
        except Exception:
            log.exception("decoding failed", extra={"action": "decoding_failed"})
            self._closing = True
            with self._wake:
                jobs = [*self._active.values(), *self._line.clear()]
            self._hand_out([(job, Piece(error=EngineFailed())) for job in jobs])
            self._loop.call_soon_threadsafe(self._failed)

    def _gather(self) -> tuple[list[Job], list[Job]]:
        """Wait for something to do: the jobs to begin with, and those to end."""
        with self._wake:
            if not (self._line or self._to_end or self.engine.busy):
                self._wake.wait(IDLE_SECONDS)
            to_end, self._to_end = self._to_end, []
            waiting = [job for job in to_end if self._line.remove(job.request.tenant, job)]
            new = [job for _ in range(self.engine.room) if (job := self._line.take())]
        self._hand_out([(job, Piece(error=job.why)) for job in waiting if job.why])
        return new, [job for job in to_end if job not in waiting]

    def _round(self, new: list[Job], to_end: list[Job]) -> None:
        pieces: list[tuple[Job, Piece]] = []
        for job in to_end:
            if not self.engine.cancel(job.request.id) and job.why:
                pieces.append((job, Piece(error=job.why)))
        pieces += [(job, piece) for job in new if (piece := self._begin(job))]
        steps = [(self._job(step), step) for step in self.engine.step()]
        pieces += [(job, self._piece(job, step)) for job, step in steps if job]
        self._notes.clear()
        self._hand_out(pieces)

    def _begin(self, job: Job) -> Piece | None:
        """Into the engine; what is to be said if it cannot go there."""
        try:
            self.engine.submit(job.request)
        except OsdError as error:
            return Piece(error=as_api_error(error))
        self._active[job.request.id] = job
        return None

    def _job(self, step: Progress) -> Job | None:
        self.finished += step.completion is not None
        return (self._active.pop if step.completion else self._active.get)(step.request_id, None)

    def _piece(self, job: Job, step: Progress) -> Piece:
        scores, version, route = self._notes.get(step.request_id, (None, None, None))
        if step.completion is None:
            return Piece(step.tokens, scores, version, route)
        return Piece(step.tokens, scores, version, route, Done.of(step.completion), job.why)

    def _listen(self, rows: Sequence[Row], progress: Sequence[Progress], verdict: Verdict, logits: Tensor) -> None:
        """The engine's listener: who drafted, and log-probabilities where they were asked for."""
        for i, (row, step) in enumerate(zip(rows, progress, strict=True)):
            if (job := self._active.get(step.request_id)) is not None:
                scores = None
                if job.top is not None:
                    places = list(verdict.places(i, 0, len(step.tokens)))
                    scores = score(logits[i, places], step.tokens, job.top)
                self._notes[step.request_id] = scores, row.rounds[-1].draft_version, row.route

    def _hand_out(self, pieces: list[tuple[Job, Piece]]) -> None:
        """To the event loop, all that is due in one call."""
        now = time.monotonic()
        for job, piece in pieces:
            self._outbox.put(job, piece, now, urgent=piece.last, told=len(self._active))
        if due := self._outbox.take(now):
            self._loop.call_soon_threadsafe(_deliver, due)


def _deliver(due: Sequence[tuple[Job, list[Piece]]]) -> None:
    for job, pieces in due:
        for piece in joined(pieces):
            job.deliver(piece)


def _full() -> Busy:
    return Busy(reason="Too many requests wait already; try again later.", code="queue_full", retry_after=1)
