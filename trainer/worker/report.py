"""What a training process tells the store of itself, and what people ask of it there: to pause, to give up its run."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from storage import records
from storage.access.processes import Trainer
from storage.errors import OsdError
from storage.settings import FleetSettings
from storage.store import Store
from trainer.distil.distil import DistilProgress
from trainer.lease import RunCancelled

log = logging.getLogger("osd.trainer")

TELL_SECONDS = 30.0
"""Minimum seconds between two lines of the log that say how far a run is."""


class TrainerReport:
    """Beats in a thread of its own, so that a long batch does not look like an end."""

    def __init__(self, store: Store, settings: FleetSettings, holder: str) -> None:
        self._store, self._settings = store, settings
        self._doing: dict[str, Any] = {}
        self._run: dict[str, Any] = {}
        self._paused = self._cancels = self._cancelled = False
        self._id, self._started_at = holder, records.now()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start to beat."""
        self.beat()
        self._thread = threading.Thread(target=self._work, name="osd-report", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop beating, and delete the row."""
        if self._thread is None:
            return
        self._closing.set()
        self._thread.join()
        try:
            self._store.trainers.end(self._id)
        except OsdError as error:
            log.warning("the store was not told of the end: %s", error, extra={"action": "report_failed"})

    def beat(self) -> None:
        """Tell the store once, and hear what is asked."""
        now, cancelled = records.now(), self._cancelled
        gone_at, doing = now + self._settings.gone_seconds, dict(self._doing)
        trainer = Trainer(self._id, socket.gethostname(), os.getpid(), self._started_at, now, gone_at, doing)
        try:
            asked = self._store.trainers.beat(trainer, cancelled=cancelled)
        except OsdError as error:
            log.warning("the store was not told what this trainer does: %s", error, extra={"action": "report_failed"})
            return
        self._paused, self._cancels = asked.paused, asked.cancels
        self._cancelled = self._cancelled and not cancelled

    def note(self, words: str) -> None:
        """Note why no run begins."""
        self._doing = {"note": words}

    def training(self, draft: str, watcher: Callable[[DistilProgress], None]) -> Callable[[DistilProgress], None]:
        """Expect a run of a draft; return a watcher that notes how far it is."""
        self._run = facts = {"draft": draft, "since": records.now()}
        told = time.monotonic()

        def watch(progress: DistilProgress) -> None:
            nonlocal told
            self._doing = {**facts, "step": progress.step, "steps": progress.steps, "loss": progress.loss}
            if time.monotonic() - told >= TELL_SECONDS:
                told, words = time.monotonic(), f"step {progress.step} of {progress.steps}, loss {progress.loss:.3f}"
                log.info("%s: %s", draft, words, extra={"action": "run_goes_on", "draft": draft})
            watcher(progress)

        return watch

    def ended(self) -> None:
        """Note that no run is under way; what was to be given up has ended."""
        if "draft" in self._doing:
            self._doing = {}
        self._cancelled, self._cancels = self._cancelled or self._cancels, False

    @property
    def paused(self) -> str | None:
        """Why no run may begin; None where one may."""
        return "paused by hand; `osd trainer resume` lets it go on" if self._paused else None

    def why_not(self) -> str | None:
        """Return why the run under way waits; None where it need not. Raises RunCancelled where people gave it up."""
        if "draft" not in self._doing:
            self._doing = self._run
        if self._cancels:
            raise RunCancelled("it was cancelled by hand")
        return self.paused

    def _work(self) -> None:
        while not self._closing.wait(self._settings.heartbeat_seconds):
            self.beat()
