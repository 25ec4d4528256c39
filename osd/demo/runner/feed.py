"""Requests into a running engine as they may start, and each finished one with the time that it took.

When the next one may start is its arrival:

- free: as fast as the engine goes
- paced: only so many finished requests may be ahead of the trainer
- lockstep: after every I requests, wait until the training that they caused is over and its version serves (the OSD
  paper's Algorithm 1, which updates the draft between two requests)

Only steps of the engine count: a step's time is divided among the requests in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, get_args

from osd.engine.engine import Engine
from osd.sequence import Completion
from storage.errors import BadRequest, BadSetting, TrainingFailed
from storage.records import Request, RunState
from storage.store import Store

IDLE_SECONDS = 0.02
"""Sleep between two looks while nothing may start."""
STALLED_SECONDS = 300.0
"""After so long without a request starting, training is taken for stuck."""
LOOK_SECONDS = 0.1
"""How often the database is asked at most."""

Kind = Literal["free", "paced", "lockstep"]
Serving = Callable[[], Mapping[str, str]]
"""The versions that draft now, of the drafts that are in memory."""


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


class RequestGate(Protocol):
    """Lets requests in."""

    def may_start(self, started: int, finished: int) -> bool:
        """Whether another one may start, when so many have started and finished since the stream began."""


class TrainerView:
    """What the database says about the training of some drafts."""

    def __init__(self, store: Store, drafts: Sequence[str]) -> None:
        self._store, self._drafts = store, drafts
        self._looked = 0.0
        self.waiting = 0
        """Requests that no run has claimed (held-out ones are never claimed), of the draft that has most."""
        self.busy = False
        """Whether a run is under way."""
        self.current: dict[str, str] = {}
        """The version that should serve, by draft."""

    def look(self) -> None:
        """Ask again if it is time. In this order: what a run takes after the first question makes it busy in the
        second, and what it publishes after the second would be seen in the third."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        store, drafts = self._store, self._drafts
        self.waiting = max(store.samples.waiting(draft).requests for draft in drafts)
        self.busy = any(run.state is RunState.CLAIMED for draft in drafts for run in store.runs.list(draft, limit=1))
        self.current = {draft: store.versions.current(draft).id for draft in drafts}
        self._looked = time.monotonic()


class Free:
    """Every request starts when there is room for it."""

    def may_start(self, started: int, finished: int) -> bool:
        """Always."""
        return True


class PacedArrival:
    """Holds requests back while ``ahead`` recorded ones wait to be claimed for training."""

    def __init__(self, trainer: TrainerView, ahead: int) -> None:
        self._trainer, self._ahead = trainer, ahead

    def may_start(self, started: int, finished: int) -> bool:
        """Whether the trainer keeps up."""
        self._trainer.look()
        return self._trainer.waiting < self._ahead


class Lockstep:
    """Lets ``interval`` requests in at a time; the next ones meet the draft that was trained on these."""

    def __init__(self, trainer: TrainerView, interval: int, *, serving: Serving, recorded: Callable[[], bool]) -> None:
        """``recorded``: whether all that has finished is in the store."""
        self._trainer, self._interval = trainer, interval
        self._serving, self._recorded = serving, recorded
        self._settled = 0

    def may_start(self, started: int, finished: int) -> bool:
        """Between two updates, or once the last one has reached the engine."""
        if started < self._settled + self._interval:
            return True
        if finished < started or not self._is_over():
            return False
        self._settled = started
        return True

    def _is_over(self) -> bool:
        if not self._recorded():
            return False
        self._trainer.look()
        is_idle = self._trainer.waiting < self._interval and not self._trainer.busy
        serving = self._serving()
        return is_idle and all(serving.get(draft, now) == now for draft, now in self._trainer.current.items())


def make_arrival(kind: str, store: Store, drafts: Sequence[str], engine: Engine, interval: int) -> RequestGate:
    """The arrival of that name; ``paced`` lets two update intervals wait. Raises BadSetting."""
    trainer = TrainerView(store, drafts)
    match kind:
        case "free":
            return Free()
        case "paced":
            return PacedArrival(trainer, 2 * interval)
        case "lockstep":
            recorded = engine.recorder.wait if engine.recorder else lambda _: True

            def serving() -> dict[str, str]:
                return {draft: loaded.version for draft, loaded in engine.pool.loaded_drafts.items()}

            return Lockstep(trainer, interval, serving=serving, recorded=lambda: recorded(LOOK_SECONDS))
    raise BadSetting(source="option", key="arrival", reason=f"{kind!r} is none of {', '.join(get_args(Kind))}")
