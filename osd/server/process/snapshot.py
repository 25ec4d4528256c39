"""A snapshot of the server's state, for those who watch it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from osd.server.admin_host import AdminHost, RequestLoad
from osd.server.dashboard.live import Live
from storage.errors import StoreError
from storage.insights.service import Answers
from storage.outcomes.outcome_window import Window
from storage.records import now

if TYPE_CHECKING:
    from osd.server.process.host import Host

RECENT_SECONDS = 600.0


class Snapshots:
    """Snapshots, at most one a second, however many watch."""

    seconds = 1.0

    def __init__(self, host: AdminHost, own: Callable[[int], dict[str, Any]]) -> None:
        """``own`` gives the facts of what serves in this process, told how many processes share the port."""
        self.host, self._own = host, own
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
        peers = self.host.peers
        others = asyncio.run(peers.loads()) if peers else []
        at_work: Sequence[RequestLoad] = [self.host.thread, *others]
        own = {
            "at": now(), "model": self.host.model, "ready": self.host.ready, "workers": len(at_work),
            "running": sum(one.running for one in at_work), "waiting": sum(one.waiting for one in at_work),
            **self._own(len(at_work)),
        }  # fmt: skip
        try:
            recent = Answers(self.host.store).acceptance(Window(since=now() - RECENT_SECONDS), ["route"])
            live = self._live.look()
        except StoreError as error:
            return own | {"store": str(error)}
        return own | {"recent_seconds": RECENT_SECONDS, "routes": [row.as_dict() for row in recent], "live": live}


def engine_facts(host: Host) -> Callable[[int], dict[str, Any]]:
    """Return what gives the facts of a host's engine."""
    engine = host.engine

    def facts(workers: int) -> dict[str, Any]:
        return {
            "rows": engine.settings.serve.max_batch * workers, "steps": engine.stats.steps,
            "swaps": len(engine.stats.swap_pause_ms), "draft_version": engine.draft_version,
            "dropped_positions": engine.recorder.dropped if engine.recorder else 0,
            "lossy": engine.settings.serve.lossy or None,
        }  # fmt: skip

    return facts
