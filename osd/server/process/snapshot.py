"""A snapshot of the server's state, for those who watch it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

from osd.server.dashboard.live import Live
from osd.server.process.engine_thread import EngineThread
from osd.server.process.host import Host
from osd.server.workers.peers import WorkerLoad
from storage.errors import StoreError
from storage.insights.service import Answers
from storage.outcomes.outcome_window import Window
from storage.records import now

RECENT_SECONDS = 600.0


class Snapshots:
    """Snapshots, at most one a second, however many watch."""

    seconds = 1.0

    def __init__(self, host: Host) -> None:
        self.host = host
        self._live = Live(host.store, host.settings.storage.flush_seconds, host.started)
        self._lock = threading.Lock()
        self._at = 0.0
        self._newest: dict[str, Any] = {}

    def take(self) -> dict[str, Any]:
        """Return the newest snapshot; queries the store, so not on the event loop."""
        with self._lock:
            if time.monotonic() - self._at >= self.seconds:
                self._newest, self._at = self._make(), time.monotonic()
            return self._newest

    def _make(self) -> dict[str, Any]:
        engine, peers = self.host.engine, self.host.peers
        others = asyncio.run(peers.loads()) if peers else []
        at_work: Sequence[WorkerLoad | EngineThread] = [self.host.thread, *others]
        own = {
            "at": now(), "model": self.host.model, "ready": self.host.ready, "workers": len(at_work),
            "running": sum(one.running for one in at_work), "waiting": sum(one.waiting for one in at_work),
            "rows": engine.settings.serve.max_batch * len(at_work), "steps": engine.stats.steps,
            "swaps": len(engine.stats.swap_pause_ms), "draft_version": engine.draft_version,
            "dropped_positions": engine.recorder.dropped if engine.recorder else 0,
        }  # fmt: skip
        try:
            recent = Answers(self.host.store).acceptance(Window(since=now() - RECENT_SECONDS), ["route"])
            live = self._live.look()
        except StoreError as error:
            return own | {"store": str(error)}
        return own | {"recent_seconds": RECENT_SECONDS, "routes": [row.as_dict() for row in recent], "live": live}
