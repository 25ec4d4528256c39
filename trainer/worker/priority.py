"""Process priority: training yields to decoding on a shared machine."""

from __future__ import annotations

import os
from contextlib import suppress

from storage.settings import TrainerSettings


def lower_priority(worker: TrainerSettings) -> None:
    """Lower this process and its children to ``trainer.nice``; never raises it again. Linux and macOS.

    On Linux, ``trainer.idle`` puts them into the idle class, which runs when nothing else wants the core.
    """
    with suppress(OSError):
        os.nice(max(0, worker.nice - os.nice(0)))
    if worker.idle and hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
