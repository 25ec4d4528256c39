"""A run's lease on its draft, renewed between batches and released politely; and requests to stop, by a signal, by the
parent process, or by the parent's end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from storage.records import TrainingRun
from storage.store import Store

if TYPE_CHECKING:
    from trainer.distil.distil import DistilProgress

RENEWALS = 4
"""Renewals in a lease's length, so that a slow batch or two do not lose it."""
PAUSE_SECONDS = 0.02
"""Seconds between checks for spare capacity while a run is paused."""


class Stop(Protocol):
    """A flag that the worker was asked to stop, such as an event of threading or multiprocessing."""

    def is_set(self) -> bool:
        """Return whether a stop was asked for."""


@contextmanager
def stop_on_signals(*numbers: signal.Signals) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets, so that the run under way gives its requests back.

    ``numbers`` names other signals. A second one of a kind ends the process at once. The previous handlers are restored
    at the end. Main thread only.
    """
    stop = threading.Event()

    def ask(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, ask) for number in numbers or (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class AnyOf:
    """A stop flag that is set when one of several is."""

    def __init__(self, *stops: Stop) -> None:
        self._stops = stops

    def is_set(self) -> bool:
        """Return whether one of them is set."""
        return any(stop.is_set() for stop in self._stops)


class Deadline:
    """A stop flag that is set so many seconds after it was made; never where there is no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def is_set(self) -> bool:
        """Return whether the time is over."""
        return self._end is not None and time.monotonic() >= self._end


class Orphaned:
    """A stop flag that is set when the parent process is gone, so that an orphan ends. Created in the parent."""

    def __init__(self) -> None:
        self._parent = os.getpid()

    def is_set(self) -> bool:
        """Return whether the parent is gone; called in the child process."""
        return os.getppid() != self._parent


class RunStopped(Exception):
    """The worker was asked to stop; the run's requests go back."""


def until_stopped(stop: Stop | None, words: str = "it was stopped") -> Callable[[], None]:
    """Return a function to call often, which raises RunStopped once a stop was asked for."""

    def go_on() -> None:
        if stop is not None and stop.is_set():
            raise RunStopped(words)

    return go_on


class RunCancelled(Exception):
    """People gave the run up; its requests count as learned, and are trained on again only as replay."""


Watcher = Callable[["DistilProgress"], None]
"""A function that is told how far training is."""


def ignore(_: DistilProgress) -> None:
    """Take no notice of how far a run is."""


@dataclass(frozen=True, slots=True)
class RunControl:
    """How a run is watched over by who started it."""

    stop: Stop = field(default_factory=threading.Event)
    """Set when the run must give its requests back."""
    watcher: Watcher = ignore
    """Called with the progress of training."""
    why_not: Callable[[], str | None] = lambda: None
    """While it returns a reason, the run pauses and its lease is renewed."""
    retry: bool = True
    """As in ``store.runs.claim``."""


class Lease:
    """The lease of a run. Call :meth:`keep` often; it is cheap most of the time."""

    def __init__(self, store: Store, run: TrainingRun, seconds: float, control: RunControl) -> None:
        self.store, self.run, self.seconds = store, run, seconds
        self.paused = 0.0
        """Seconds for which the run was paused."""
        self._control = control
        self._due = time.monotonic() + seconds / RENEWALS

    def step(self, progress: DistilProgress) -> None:
        """Keep the lease between two batches, and tell how far training is. Raises as :meth:`keep`."""
        self.keep()
        self._control.watcher(progress)

    def keep(self) -> None:
        """Pause while others need the capacity, and renew the lease when a quarter of it is over.

        Raises RunStopped when a stop was asked for, LeaseLost when another worker has taken the draft.
        """
        while True:
            if self._control.stop.is_set():
                raise RunStopped("the worker was asked to stop")
            time.sleep(0)
            if time.monotonic() >= self._due:
                self.renew()
            if self._control.why_not() is None:
                return
            time.sleep(PAUSE_SECONDS)
            self.paused += PAUSE_SECONDS

    def renew(self) -> None:
        """Renew the lease now. Raises LeaseLost."""
        self.run = self.store.runs.heartbeat(self.run, self.seconds)
        self._due = time.monotonic() + self.seconds / RENEWALS
