"""What the admin port asks of a server, whether it decodes itself or passes requests on to replicas, and snapshots of
its state for those who watch it."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from osd.server.http.keys import KeyRing
from osd.server.metrics.server import Meters
from osd.server.processes import Peers
from storage.errors import StoreError
from storage.insights.cost import UndraftedRound, plain_round
from storage.insights.recent import undrafted
from storage.insights.service import Answers
from storage.insights.timeline import lately
from storage.outcomes.outcome_window import Window
from storage.records import now
from storage.settings import Settings
from storage.store import Store

RECENT_SECONDS = 600.0
SECONDS = 60.0
PLAIN_SECONDS = 10.0
"""Minimum seconds between computations of b(0), which reads the whole log of requests."""


class RequestLoad(Protocol):
    """What a server has to do."""

    @property
    def running(self) -> int:
        """Number of requests that are being answered."""

    @property
    def waiting(self) -> int:
        """Number of requests in line."""


class FinishedLoad(RequestLoad, Protocol):
    """What a server has to do, and has done."""

    @property
    def finished(self) -> int:
        """Requests that have ended, in whatever way, since it began."""


@dataclass(slots=True)
class AdminHost(ABC):
    """The state behind the admin port's routes."""

    settings: Settings
    store: Store
    ring: KeyRing
    meters: Meters
    peers: Peers | None
    """The other servers behind the port; None where it is alone."""
    load: FinishedLoad
    measure: Callable[[], Awaitable[bytes]] = field(init=False)
    """Produces the body of GET /metrics."""
    started: float = field(default_factory=now, init=False)
    ready: bool = field(default=True, init=False)
    """False while it drains."""

    def turn(self, ready: bool) -> None:
        """Take requests, or refuse them from now on."""
        self.ready = ready

    @property
    @abstractmethod
    def model(self) -> str:
        """Return the name that clients ask for."""


class LookInside(Protocol):
    """The newest requests, token by token."""

    @property
    def allowed(self) -> bool:
        """Return whether texts may be shown now."""

    def newest(self) -> list[dict[str, Any]]:
        """Return finished requests, newest first, without text."""

    def show(self, request_id: str) -> dict[str, Any] | None:
        """Return a request with its text; None where it is not, or no longer, held."""


def may_inspect(settings: Settings, ring: KeyRing) -> bool:
    """Return whether texts may be held and shown; see ``server.inspect``."""
    if settings.server.inspect is not None:
        return settings.server.inspect
    return settings.privacy.learn and settings.privacy.redact is None and ring.local_only and not ring.needed


class Snapshots:
    """Snapshots, at most one a second, however many watch."""

    seconds = 1.0

    def __init__(self, host: AdminHost, own: Callable[[int], dict[str, Any]]) -> None:
        """``own`` gives the facts of what serves in this process, told how many servers share the port."""
        self.host, self._own = host, own
        self._lock = threading.Lock()
        self._at = 0.0
        self._newest: dict[str, Any] = {}
        self._plain: UndraftedRound | None = None
        self._plain_at = -PLAIN_SECONDS
        self._undrafted: list[str] = []

    def take(self) -> dict[str, Any]:
        """Return the newest snapshot; queries the store, so not on the event loop."""
        with self._lock:
            if time.monotonic() - self._at >= self.seconds:
                self._newest, self._at = self._make(), time.monotonic()
            return self._newest

    def _make(self) -> dict[str, Any]:
        peers = self.host.peers
        others = asyncio.run(peers.loads()) if peers else []
        at_work: Sequence[RequestLoad] = [self.host.load, *others]
        own = {
            "at": now(), "model": self.host.model, "ready": self.host.ready, "workers": len(at_work),
            "running": sum(one.running for one in at_work), "waiting": sum(one.waiting for one in at_work),
            **self._own(len(at_work)),
        }  # fmt: skip
        try:
            recent = Answers(self.host.store).acceptance(Window(since=now() - RECENT_SECONDS), ["route"])
            live = self._now()
        except StoreError as error:
            return own | {"store": str(error)}
        return own | {"recent_seconds": RECENT_SECONDS, "routes": [row.as_dict() for row in recent], "live": live}

    def _now(self) -> dict[str, Any]:
        """Return the rates of the last minute over all servers of the store; ``speedup`` is estimated time without a
        draft ÷ time taken. Raises StoreError."""
        store, until = self.host.store, now() - self.host.settings.storage.flush_seconds
        found = lately(store.db, max(until - SECONDS, min(self.host.started, until - 1)), until)
        if time.monotonic() - self._plain_at >= PLAIN_SECONDS:
            self._plain, self._plain_at = plain_round(store.db, store.targets.newest()), time.monotonic()
            self._undrafted = undrafted(store.db)
        speedup = None
        if self._plain and found.decode_ms:
            speedup = found.emitted * self._plain.ms / found.decode_ms
        how = self._plain.how if self._plain else None
        return {**asdict(found), "undrafted": self._undrafted, "speedup": speedup, "speedup_how": how}
