"""A run's lease on its draft: renewed between batches, released politely, its loss noticed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from storage.records import TrainingRun
from storage.store import Store
from trainer.shutdown import Stop

RENEWALS = 4
"""Renewals in a lease's length, so that a slow batch or two do not lose it."""


PAUSE_SECONDS = 0.02
"""Seconds between checks for spare capacity while a run is paused."""


class RunStopped(Exception):
    """The worker was asked to stop; the run's requests go back."""


class RunCancelled(Exception):
    """People gave the run up; its requests count as learned, and are trained on again only as replay."""


class Lease:
    """The lease of a run. Call :meth:`keep` often; it is cheap most of the time."""

    def __init__(
        self,
        store: Store,
        run: TrainingRun,
        seconds: float,
        stop: Stop | None = None,
        why_not: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Hold the lease of ``run``; while ``why_not`` returns a reason, the run pauses and its lease is renewed."""
        self.store, self.run, self.seconds = store, run, seconds
        self.paused = 0.0
        """Seconds for which the run was paused."""
        self._why_not = why_not
        self._stop: Stop = stop or threading.Event()
        self._due = time.monotonic() + seconds / RENEWALS

    def keep(self) -> None:
        """Pause while others need the capacity, and renew the lease when a quarter of it is over.

        Raises Stopped when a stop was asked for, LeaseLost when another worker has taken the draft.
        """
        while True:
            if self._stop.is_set():
                raise RunStopped("the worker was asked to stop")
            time.sleep(0)
            if time.monotonic() >= self._due:
                self.renew()
            if self._why_not() is None:
                return
            time.sleep(PAUSE_SECONDS)
            self.paused += PAUSE_SECONDS

    def renew(self) -> None:
        """Renew the lease now. Raises LeaseLost."""
        self.run = self.store.runs.heartbeat(self.run, self.seconds)
        self._due = time.monotonic() + self.seconds / RENEWALS
