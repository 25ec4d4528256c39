"""The state that the routes of a front over replicas share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp

from osd.server.http.errors import ApiError
from osd.server.http.ring import KeyRing
from osd.server.meters import Meters
from osd.server.upstream.pool import ReplicaPool
from osd.server.workers.peers import Peers
from router.base import Router
from storage.records import now
from storage.settings import Settings
from storage.store import Store


@dataclass(slots=True)
class UpstreamHost:
    """The front's state; also what its admin port asks of it (:class:`osd.server.admin_host.AdminHost`)."""

    settings: Settings
    store: Store
    ring: KeyRing
    meters: Meters
    router: Router
    pool: ReplicaPool
    client: aiohttp.ClientSession
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    """What replicas are asked with: their API key, where they want one."""
    peers: Peers | None = None
    """The other processes behind the port; None where it is alone."""
    measure: Callable[[], Awaitable[bytes]] = field(init=False)
    """Produces the body of GET /metrics."""
    started: float = field(default_factory=now)
    ready: bool = True
    """False while it drains."""
    ended: ApiError | None = None
    """Why every running call ends now; None while they may go on."""
    calls: int = 0
    """Calls that run."""

    @property
    def thread(self) -> ReplicaPool:
        """What it has to do."""
        return self.pool

    @property
    def model(self) -> str:
        """The name that clients ask for."""
        return self.pool.model

    def may_learn(self, tenant: str) -> bool:
        """Return whether requests of a tenant may be kept, without a query. A name that no header can say may not:
        replicas would take the requests for somebody else's."""
        known = bool(self.store.tenants.last_known([tenant]))
        return self.settings.server.learn and known and tenant.isascii() and tenant.isprintable()
