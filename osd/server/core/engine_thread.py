"""The one thread that steps the engine: jobs in and outputs out, straight from and to the API server process.

It never waits for HTTP, for the database or for the disk. Between two steps it reads its socket and
writes what is due; nothing of a job passes through this process's event loop, which would take the interpreter from it
every time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from osd.engine.engine import Engine
from osd.kernels.host import let_go, wake_promptly
from osd.logits import RaggedLogits, score
from osd.sequence import RequestOutput, SequenceState
from osd.server.core.grammars import GrammarQueue
from osd.server.core.ipc import Endpoint
from osd.server.core.messages import EngineJob, api_error, engine_job
from osd.server.core.queues import FairQueue, Outbox
from osd.server.core.target_move import TargetMove
from osd.server.errors import ApiError, Busy, Draining, ServerStopped, TargetMoved, as_api_error
from osd.verification.result import VerifyResult
from storage.errors import OsdError

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.05
"""Interval at which an idle engine is stepped, to swap drafts and inform routers."""
COMPILING_SECONDS = 0.002
"""The same while a grammar is being compiled."""


class EngineThread:
    """The decode thread. Start it once, from an event loop; public methods may be called from other threads."""

    def __init__(self, engine: Engine, queue: int, end: socket.socket) -> None:
        """Prepare the thread. At most ``queue`` requests wait; an :class:`EngineClient` is at the other end of the
        socket ``end``."""
        self.engine, self.draining = engine, False
        self.finished = 0
        """Requests that have ended, in whatever way, since it began."""
        self.failed: Callable[[], None] = lambda: None
        """Called on the event loop when decoding breaks."""
        self._loop, self._endpoint = asyncio.get_running_loop(), Endpoint(end)
        self._waiting: FairQueue[EngineJob] = FairQueue(queue)
        self._compiling = GrammarQueue(lambda grammar: self.engine.admission.grammars.prepare(grammar))
        self._jobs: dict[str, EngineJob] = {}
        """Those that wait, and those in the engine."""
        self._outbox = Outbox()
        self._closing = self._ending_all = False
        self._thread = threading.Thread(target=self._work, name="osd-decode", daemon=True)
        self._cores = torch.get_num_threads()
        self._handlers: dict[str, Callable[..., None]] = {"submit": self._submit, "end": self._end}
        self._move: TargetMove | None = None
        self._followers: list[Callable[[Engine], object]] = []
        self.follow(lambda engine: engine.listeners.append(self._listen))

    def start(self) -> None:
        """Begin to decode."""
        self._thread.start()

    def follow(self, follower: Callable[[Engine], object]) -> None:
        """Call ``follower`` with the engine, now and whenever it is exchanged."""
        self._followers.append(follower)
        follower(self.engine)

    def move(self, move: TargetMove) -> None:
        """Exchange the engine as soon as it may be; nothing is admitted until then."""
        self._move = move

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting) + len(self._compiling)

    @property
    def running(self) -> int:
        """Number of requests in the engine."""
        return max(0, len(self._jobs) - self.waiting)

    @property
    def alive(self) -> bool:
        """Whether it decodes."""
        return self._thread.is_alive()

    def drain(self, drains: bool) -> None:
        """Refuse new requests, or take them again."""
        self.draining = drains

    def end_all(self) -> None:
        """End every running or waiting request, before the next step."""
        self._ending_all = True

    def close(self, timeout: float | None = None) -> None:
        """Stop decoding."""
        self._closing = True
        self._thread.join(timeout)

    def _work(self) -> None:
        wake_promptly()
        torch.set_num_threads(self._cores)  # a new thread would begin with the recorder thread's setting
        try:
            while not self._closing:
                self._hear()
                self._exchange()
                self._begin()
                self._step()
                self._tell()
        except Exception:
            log.exception("decoding failed", extra={"action": "decoding_failed"})
            self._closing = True
            self._loop.call_soon_threadsafe(self.failed)
        self._endpoint.close()  # whoever still waits is told on the other side

    def _hear(self) -> None:
        """Handle messages of the other process, waiting for one when idle."""
        if not (self._waiting or self.engine.busy):
            self._endpoint.wait(COMPILING_SECONDS if self._compiling else IDLE_SECONDS)
        for kind, *what in self._endpoint.take():
            self._handlers[kind](*what)
        for jobs, error in self._compiling.take() if self._compiling else ():
            if error:
                self._refuse(jobs, as_api_error(error))
            else:
                self._queue(jobs)
        if self._ending_all or (self._jobs and not self._endpoint.open):
            self._ending_all = False
            for job in list(self._jobs.values()):
                self._stop(job, ServerStopped())

    def _submit(self, packed: Sequence[list[Any]]) -> None:
        """Put jobs in line, all or none, once their grammar is compiled, if they have one: a call has one for all."""
        jobs = [engine_job(one) for one in packed]
        if self.draining:
            self._refuse(jobs, Draining(retry_after=5))
        elif grammar := jobs[0].request.grammar:
            self._jobs |= {job.request.id: job for job in jobs}
            self._compiling.put(grammar, jobs)
        else:
            self._queue(jobs)

    def _queue(self, jobs: Sequence[EngineJob]) -> None:
        pushed_out = self._waiting.put(jobs[0].request.tenant, *jobs)
        if pushed_out is not None:
            self._jobs |= {job.request.id: job for job in jobs}
        self._refuse(jobs if pushed_out is None else pushed_out, _full())

    def _refuse(self, jobs: Sequence[EngineJob], why: ApiError | None) -> None:
        """Report ``why`` for jobs that do not come into the engine, and forget them."""
        for job in jobs:
            self._jobs.pop(job.request.id, None)
            job.why = why
            self._due(job)

    def _end(self, request_id: str, why: list[Any] | None) -> None:
        """End a request that is no longer wanted; ``why`` is the error to report, if any."""
        if job := self._jobs.get(request_id):
            self._stop(job, api_error(why))

    def _stop(self, job: EngineJob, why: ApiError | None) -> None:
        if self._waiting.remove(job.request.tenant, job) or self._compiling.remove(job):
            self._refuse([job], why)
        else:
            job.why = why
            self.engine.cancel(job.request.id)

    def _exchange(self) -> None:
        """Exchange the engine where that was asked for, once it is idle."""
        if (move := self._move) is None:
            return
        kept: list[SequenceState] = []
        if move.requests == "keep":
            kept = self.engine.hand_over()
        elif move.requests == "abort" and not move.begun:
            for row in self.engine.sequences:
                self._stop(self._jobs[row.request.id], TargetMoved())
        move.begun = True
        if not self.engine.busy:
            self._move = None
            self._begin_engine(move, kept)
        elif kept:
            self.engine.take_over(kept)

    def _begin_engine(self, move: TargetMove, kept: Sequence[SequenceState]) -> None:
        error: Exception | None = None
        try:
            self.engine = move.begin()
        except Exception as failed:  # whatever it is, who asked for the exchange hears of it
            self.engine, error = move.instead(), failed
        for follower in self._followers:
            follower(self.engine)
        self.engine.take_over(kept)
        let_go()
        if error is None:
            move.done.set_result(self.engine)
        else:
            move.done.set_exception(error)

    def _begin(self) -> None:
        """Move requests from the queue into the engine, as far as there is room."""
        for _ in range(0 if self._move else self.engine.room):
            if not (job := self._waiting.take()):
                return
            try:
                self.engine.submit(job.request)
            except OsdError as error:
                self._refuse([job], as_api_error(error))

    def _step(self) -> None:
        for progress in self.engine.step():
            if progress.completion:
                job = self._jobs.pop(progress.request_id)
                job.done = progress.completion
                job.prompt = job.prompt if job.row else progress.completion.prompt_scores
                self.finished += 1
                self._due(job)

    def _listen(
        self, rows: Sequence[SequenceState], progress: Sequence[RequestOutput], verdict: VerifyResult,
        scored: RaggedLogits,
    ) -> None:  # fmt: skip
        """Note, as the engine's listener, which requests have begun, and log-probabilities where asked for."""
        for i, row in enumerate(rows):
            job = self._jobs[row.request.id]
            if job.row is None:
                job.row, job.prompt = row, row.prompt_scores
                self._outbox.put(job, time.monotonic())
            if job.top is not None:
                tokens = progress[i].tokens
                job.score(score(scored.at(i, verdict.places(i, 0, len(tokens))), tokens, job.top))

    def _due(self, job: EngineJob) -> None:
        self._outbox.put(job, time.monotonic(), urgent=True)

    def _tell(self) -> None:
        """Send everything that is due in one message, and schedule the jobs that still decode again."""
        now, receivers = time.monotonic(), len(self.engine.rows)
        due = self._outbox.take(now)
        if outputs := [(job.request.id, output) for job in due for output in job.take()]:
            self._endpoint.say("outputs", outputs)
        self._endpoint.send()
        for job in due:
            if job.request.id in self._jobs:
                self._outbox.put(job, now, receivers=receivers)


def _full() -> Busy:
    return Busy(reason="Too many requests wait already; try again later.", code="queue_full", retry_after=1)
