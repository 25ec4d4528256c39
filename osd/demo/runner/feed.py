"""Requests into a running engine as they may start, and each finished one with the time that it took.

Only steps of the engine count: a step's time is divided among the requests in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from osd.demo.runner.arrival import RequestGate
from osd.engine.engine import Engine
from osd.sequence import Completion
from storage.errors import BadRequest, TrainingFailed
from storage.records import Request

IDLE_SECONDS = 0.02
"""Sleep between two looks while nothing may start."""
STALLED_SECONDS = 300.0
"""After so long without a request starting, training is taken for stuck."""


class Spent(NamedTuple):
    """What one request took."""

    seconds: float
    """Its share of the steps in which it was in flight."""
    company: float
    """Requests in flight meanwhile, itself included, on average over time."""


Finished = list[tuple[Completion, Spent]]
Refused = Callable[[BadRequest], None]
"""Told of a request that cannot be served."""


class RequestFeed:
    """One engine's. ``started`` and ``finished`` count over all that it served."""

    def __init__(self, engine: Engine, arrival: RequestGate, draft: str, rows: int | None = None) -> None:
        """``draft`` names what is trained, for the message when nothing may start any more; ``rows`` requests at a
        time, or as many as the engine has room for."""
        self._engine, self._arrival, self._draft = engine, arrival, draft
        self._rows = rows or engine.settings.serve.max_batch
        self._share: dict[str, float] = {}
        self._since: dict[str, float] = {}
        """What the clock below was when each request started."""
        self._stepped = 0.0
        """Seconds of all steps."""
        self.started = self.finished = 0

    def serve(self, requests: Iterator[Request], refused: Refused) -> Iterator[Finished]:
        """After each step what it finished, with seconds. The engine is stepped without requests too: it may have a
        swap to make. Raises TrainingFailed when training is stuck."""
        waiting = next(requests, None)
        last_start = time.monotonic()
        while waiting or self._engine.busy:
            while waiting and self._has_room() and self._arrival.may_start(self.started, self.finished):
                self._start(waiting, refused)
                waiting, last_start = next(requests, None), time.monotonic()
            if not self._engine.busy:
                time.sleep(IDLE_SECONDS)
            if waiting and time.monotonic() - last_start > STALLED_SECONDS:
                reason = f"no request could start for {STALLED_SECONDS:.0f} seconds; see the worker's log"
                raise TrainingFailed(run="(unknown)", draft=self._draft, reason=reason)
            yield self._step()

    def _has_room(self) -> bool:
        return len(self._share) < self._rows

    def _start(self, request: Request, refused: Refused) -> None:
        try:
            self._engine.submit(request)
        except BadRequest as error:
            refused(error)
        else:
            self._share[request.id], self._since[request.id] = 0.0, self._stepped
            self.started += 1

    def _step(self) -> Finished:
        begun = time.perf_counter()
        progress = self._engine.step()
        took = time.perf_counter() - begun
        self._stepped += took
        share = took / max(1, len(self._share))
        for request_id in self._share:
            self._share[request_id] += share
        ended = [step.completion for step in progress if step.completion]
        self.finished += len(ended)
        return [(completion, self._spent(completion.request.id)) for completion in ended]

    def _spent(self, request_id: str) -> Spent:
        share = self._share.pop(request_id)
        return Spent(share, (self._stepped - self._since.pop(request_id)) / share)
