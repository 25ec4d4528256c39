"""What the admin port asks of a server, whether it decodes itself or passes requests on to replicas."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from osd.server.http.ring import KeyRing
from osd.server.meters import Meters
from osd.server.workers.peers import Peers
from storage.settings import Settings
from storage.store import Store


class RequestLoad(Protocol):
    """What a server has to do."""

    @property
    def running(self) -> int:
        """Number of requests that are being answered."""
        ...

    @property
    def waiting(self) -> int:
        """Number of requests in line."""
        ...


class AdminHost(Protocol):
    """The state behind the admin port's routes."""

    settings: Settings
    store: Store
    ring: KeyRing
    meters: Meters
    peers: Peers | None
    started: float
    ready: bool

    def measure(self) -> Awaitable[bytes]:
        """Produce the body of GET /metrics."""
        ...

    @property
    def thread(self) -> RequestLoad:
        """Return what it has to do."""
        ...

    @property
    def model(self) -> str:
        """Return the name that clients ask for."""
        ...


class LookInside(Protocol):
    """The newest requests, token by token."""

    @property
    def allowed(self) -> bool:
        """Return whether texts may be shown now."""
        ...

    def newest(self) -> list[dict[str, Any]]:
        """Return finished requests, newest first, without text."""
        ...

    def show(self, request_id: str) -> dict[str, Any] | None:
        """Return a request with its text; None where it is not, or no longer, held."""
        ...
