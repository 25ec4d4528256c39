"""The training process: what its Celery task opens once, and the turns that it takes.

Torch is imported here, in the process that trains: the worker's parent stays small, and CUDA is never initialised
before a fork.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from osd.kernels.host import give_back
from storage.errors import OsdError, SchemaOutdated
from storage.settings import Settings, TrainerSettings
from trainer.lease import AnyOf, Deadline, Stop, stop_on_signals

if TYPE_CHECKING:
    from trainer.worker.schedule import TrainingSchedule

log = logging.getLogger("osd.trainer")

UNASKED = 3
"""Poll intervals without a nudge, after which the training process polls by itself."""
LONGEST_NAP = 5.0
"""Maximum seconds between checks for a stop."""


class TrainingProcess:
    """The training process's state between tasks."""

    def __init__(
        self, settings: Settings, stop: Stop, draft: str | None, give_up: Callable[[], None] = lambda: None
    ) -> None:
        """Open nothing yet. ``give_up`` is called, in the training process, when going on makes no sense."""
        self.settings, self.stop, self.draft, self._give_up = settings, stop, draft, give_up
        self._turns: TrainingSchedule | None = None
        self._busy, self._ended = threading.Lock(), 0.0

    def turn(self) -> int:
        """Take one turn over the drafts; return the number of runs.

        Errors of osd's own are logged, and the next turn tries again. A SIGTERM to this process itself, as a
        process group gets it, ends the run politely too.
        """
        with stop_on_signals(signal.SIGTERM) as told:
            return self._take(AnyOf(self.stop, told))

    def watch_over(self, **_: object) -> None:
        """Take turns unasked from now on when no nudge came for some polls, because the broker is unreachable.

        Called in the training process.
        """
        self._ended = time.monotonic()
        threading.Thread(target=self._watch_over, name="osd-fallback", daemon=True).start()

    def close(self, **_: object) -> None:
        """Take this trainer off the list: it ends in order. Called in the training process.

        The pool sends a process that says goodbye another SIGTERM, which it holds off in one thread alone: any other
        thread would take it, and the process die with the lock by which its parent is told.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._turns is not None:
            self._turns.report.close()
            self._turns.trackers.close()

    def _watch_over(self) -> None:
        patience = UNASKED * self.settings.trainer.poll_seconds
        while not self.stop.is_set():
            time.sleep(min(self.settings.trainer.poll_seconds, LONGEST_NAP))
            if time.monotonic() - self._ended > patience and not self._busy.locked():
                log.debug("nobody asked for a turn; looking all the same", extra={"action": "fallback"})
                self._take(self.stop)

    def _take(self, stop: Stop) -> int:
        with self._busy:
            try:
                turns = self._opened()
                lower_priority(self.settings.trainer)  # what is imported before would take minutes beside busy cores
                turns.stop = AnyOf(stop, Deadline(self.settings.trainer.turn_seconds))
                turns.store.db.require_current_schema()
                return len(turns.take_turn())
            except SchemaOutdated as error:
                log.error("%s", error, extra={"action": "schema_outdated"})
                self._give_up()
                return 0
            except OsdError as error:
                log.error("%s", error, extra={"action": "turn_failed"})
                return 0
            finally:
                give_back()
                self._ended = time.monotonic()

    def _opened(self) -> TrainingSchedule:
        if self._turns is None:
            self._turns = open_turns(self.settings, self.stop, self.draft)
            self._turns.report.begin()
        return self._turns


def open_turns(settings: Settings, stop: Stop, draft: str | None) -> TrainingSchedule:
    """Load torch with the worker's threads, and open the store. Raises as :func:`storage.store.open_store`."""
    os.environ["OMP_NUM_THREADS"] = str(settings.trainer.threads)  # before torch is first imported
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as NVML counts (trainer.device = "spare")
    import torch

    from storage.sql.audit import act
    from storage.store import open_store
    from trainer.worker.schedule import TrainingSchedule

    torch.set_num_threads(settings.trainer.threads)
    act("trainer")
    store = open_store(settings)
    store.sweep()  # what a killed process left half-done
    return TrainingSchedule(store, settings, stop, draft)


def lower_priority(worker: TrainerSettings) -> None:
    """Lower this thread (macOS: this process) and what it starts to ``trainer.nice``; never raises it again.

    On Linux, ``trainer.idle`` puts them into the idle class, which runs when nothing else wants the core.
    """
    with suppress(OSError):
        os.nice(max(0, worker.nice - os.nice(0)))
    if worker.idle and hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
