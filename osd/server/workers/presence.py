"""Says in the database that this serving process lives, and hears whether it is to drain.

A thread of its own: while the database is away it waits, and decoding does not. What it says next is what is true then,
so nothing has to be caught up with.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from osd.engine.engine import Engine
from osd.server.process.engine_thread import EngineThread
from storage import records
from storage.access.workers import Worker, WorkerState
from storage.errors import OsdError
from storage.settings import FleetSettings
from storage.store import Store

log = logging.getLogger(__name__)


class Presence:
    """Between :meth:`begin` and :meth:`close` the process is listed."""

    def __init__(
        self, store: Store, settings: FleetSettings, engine: Engine, thread: EngineThread, url: str,
        wanted: Callable[[bool], object], replaces: str | None = None,
    ) -> None:  # fmt: skip
        """``wanted`` hears, on the presence's thread, whether somebody wants this process to drain, each time that
        changes. ``replaces``: a process that ended without a word, whose place this one takes."""
        assert engine.recorder is not None
        self.store, self.settings, self.swap = store, settings, engine.swap
        self.id, self.url = engine.recorder.worker, url
        self.state = WorkerState.SERVING
        self._engine, self._decoding, self._wanted, self._replaces = engine, thread, wanted, replaces
        self._started, self._drains, self._away = records.now(), False, False
        self._finished, self._at = thread.finished, time.monotonic()
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="osd-presence", daemon=True)

    def begin(self) -> None:
        """Start to tell."""
        self._thread.start()

    def turn(self, state: WorkerState) -> None:
        """Change to another state, and tell it at once."""
        self.state = state
        self._wake.set()

    def close(self) -> None:
        """Stop telling, and take this process off the list of workers: it ended in order. Never raises."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        try:
            self.store.canaries.let_go(self.id)
            self.store.workers.end(self.id)
        except OsdError as error:
            log.warning("the store was not told of the end: %s", error, extra={"action": "presence_close_failed"})

    def _work(self) -> None:
        while not self._closing:
            self._try_tell()
            self._wake.wait(self.settings.heartbeat_seconds)
            self._wake.clear()

    def _try_tell(self) -> None:
        try:
            self._tell()
        except OsdError as error:
            if not self._away:
                log.warning("no heartbeat: %s", error, extra={"action": "heartbeat_failed"})
            self._away = True
        else:
            self._away = False

    def _tell(self) -> None:
        if self.state is WorkerState.DRAINING:
            self.store.canaries.let_go(self.id)
        drains = self.store.workers.beat(self._now(), self._replaces)
        self._replaces = None
        if drains != self._drains:
            self._drains = drains
            self._wanted(drains)

    def _now(self) -> Worker:
        at, thread = records.now(), self._decoding
        return Worker(
            self.id, socket.gethostname(), os.getpid(), self.url, self._started, at, at + self.settings.gone_seconds,
            self.state, running=thread.running, waiting=thread.waiting, rate=self._rate(), drafts=self._holds(),
            trouble="; ".join(self.swap.troubles.copy().values()) or None if self.swap else None,
        )  # fmt: skip

    def _rate(self) -> float:
        finished, at = self._decoding.finished, time.monotonic()
        count, seconds = finished - self._finished, at - self._at
        self._finished, self._at = finished, at
        return round(count / seconds, 3) if seconds > 0 else 0.0

    def _holds(self) -> dict[str, dict[str, str]]:
        """Return the version and digest of each draft that the engine has in memory, by the draft's name; the digest is
        that of the files it was read from."""
        if self.swap is None:
            return {}
        digests = {version.id: version.digest for version in self.swap.serving.copy().values()}
        seats = self._engine.drafter.loaded_drafts.copy()
        held = {name: seat.version for name, seat in seats.items()}
        return {name: {"version": version, "digest": digests.get(version, "")} for name, version in held.items()}
