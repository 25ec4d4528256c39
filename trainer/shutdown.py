"""Stop requests: by a signal, by the parent process, or by the parent's end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


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
