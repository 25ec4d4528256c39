"""Being asked to stop: by a signal, by the process above, or by its end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


class Stop(Protocol):
    """What tells that the worker was asked to stop: an event of threads or of processes."""

    def is_set(self) -> bool:
        """Whether it was."""


@contextmanager
def stop_on_signals(*numbers: signal.Signals) -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that the run under way gives its requests back.

    ``numbers`` names other signals. A second one of a kind ends the process at once. The handlers that were there
    come back at the end. Main thread only.
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
    """Set when one of several is."""

    def __init__(self, *stops: Stop) -> None:
        self._stops = stops

    def is_set(self) -> bool:
        """Whether one is."""
        return any(stop.is_set() for stop in self._stops)


class Orphaned:
    """Set when the parent is gone: a child that nobody can stop any more stops by itself. Made in the parent."""

    def __init__(self) -> None:
        self._parent = os.getpid()

    def is_set(self) -> bool:
        """Asked in the child process."""
        return os.getppid() != self._parent
