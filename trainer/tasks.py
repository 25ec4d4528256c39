"""What the one task does: it opens what it needs once a process, and takes a turn.

Torch is imported here, in the process that trains: the worker's parent stays small, and CUDA is never
initialised before a fork.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING

from storage.errors import OsdError
from storage.settings import Settings
from trainer.signals import AnyOf, Stop, stop_on_signals

if TYPE_CHECKING:
    from trainer.turns import Turns

log = logging.getLogger("osd.trainer")

TURN = "osd.turn"
"""The task's name."""


class Trainee:
    """What the training process keeps between tasks."""

    def __init__(self, settings: Settings, stop: Stop, draft: str | None) -> None:
        self.settings, self.stop, self.draft = settings, stop, draft
        self._turns: Turns | None = None

    def turn(self) -> int:
        """One turn over the drafts; the number of runs that came of it.

        What osd raises on purpose is logged, and the next turn tries again. A SIGTERM to this very process, as a
        process group gets it, ends the run politely too.
        """
        try:
            with stop_on_signals(signal.SIGTERM) as told:
                turns = self._opened()
                turns.stop = AnyOf(self.stop, told)
                return len(turns.take())
        except OsdError as error:
            log.error("%s", error, extra={"action": "turn_failed"})
            return 0

    def _opened(self) -> Turns:
        if self._turns is None:
            self._turns = open_turns(self.settings, self.stop, self.draft)
        return self._turns


def open_turns(settings: Settings, stop: Stop, draft: str | None) -> Turns:
    """Load torch with the worker's threads, and open the store. Raises what :func:`storage.store.open_store` raises."""
    os.environ["OMP_NUM_THREADS"] = str(settings.worker.threads)  # before torch is first imported
    import torch

    from storage.store import open_store
    from trainer.turns import Turns

    torch.set_num_threads(settings.worker.threads)
    store = open_store(settings)
    store.sweep()  # what a killed process left half-done
    return Turns(store, settings, stop, draft)
