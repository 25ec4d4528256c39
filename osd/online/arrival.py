"""When the next request may start.

- free: as fast as the engine goes
- paced: only so many finished requests may be ahead of the trainer
- lockstep: after every I requests, wait until the training that they caused is over and its version serves (the OSD
  paper's Algorithm 1, which updates the draft between two requests)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, Protocol, get_args

from osd.engine import Engine
from storage.errors import BadSetting
from storage.records import RunState
from storage.store import Store

LOOK_SECONDS = 0.1
"""How often the database is asked at most."""

Kind = Literal["free", "paced", "lockstep"]


class Arrival(Protocol):
    """Lets requests in."""

    def may_start(self, started: int, finished: int) -> bool:
        """Whether another one may start, when so many have started and finished since the stream began."""
        ...


class Trainer:
    """What the database says about the training of one draft."""

    def __init__(self, store: Store, draft: str) -> None:
        self._store, self._draft = store, draft
        self._looked = 0.0
        self.waiting = 0
        """Requests that no run has claimed (held-out ones are never claimed)."""
        self.busy = False
        """Whether a run is under way."""
        self.current = ""
        """The version that should serve."""

    def look(self) -> None:
        """Ask again if it is time. In this order: what a run takes after the first question makes it busy in the
        second, and what it publishes after the second would be seen in the third."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self.waiting = self._store.samples.waiting(self._draft).requests
        self.busy = any(run.state is RunState.CLAIMED for run in self._store.runs.list(self._draft, limit=1))
        self.current = self._store.versions.current(self._draft).id
        self._looked = time.monotonic()


class Free:
    """Every request starts when there is room for it."""

    def may_start(self, started: int, finished: int) -> bool:
        """Always."""
        return True


class Paced:
    """Holds requests back while ``ahead`` recorded ones wait to be claimed for training."""

    def __init__(self, trainer: Trainer, ahead: int) -> None:
        self._trainer, self._ahead = trainer, ahead

    def may_start(self, started: int, finished: int) -> bool:
        """Whether the trainer keeps up."""
        self._trainer.look()
        return self._trainer.waiting < self._ahead


class Lockstep:
    """Lets ``interval`` requests in at a time; the next ones meet the draft that was trained on these."""

    def __init__(
        self, trainer: Trainer, interval: int, *, serving: Callable[[], str], recorded: Callable[[], bool]
    ) -> None:
        """``serving``: the version that drafts now. ``recorded``: whether all that has finished is in the store."""
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
        return is_idle and self._trainer.current == self._serving()


def make_arrival(kind: str, store: Store, draft: str, engine: Engine, interval: int) -> Arrival:
    """The arrival of that name; ``paced`` lets two update intervals wait. Raises BadSetting."""
    trainer = Trainer(store, draft)
    match kind:
        case "free":
            return Free()
        case "paced":
            return Paced(trainer, 2 * interval)
        case "lockstep":
            recorded = engine.recorder.wait if engine.recorder else lambda _: True
            return Lockstep(
                trainer, interval, serving=lambda: engine.draft_version, recorded=lambda: recorded(LOOK_SECONDS)
            )
    raise BadSetting(source="option", key="arrival", reason=f"{kind!r} is none of {', '.join(get_args(Kind))}")
