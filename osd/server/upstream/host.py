"""The state that the routes of a proxy over replicas share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import aiohttp

from osd.server.admin.snapshots import AdminHost
from osd.server.errors import ApiError
from osd.server.upstream.replicas import ReplicaPool
from router.base import Router
from storage.files.cipher import read_secret
from storage.settings import UpstreamSettings


@dataclass(slots=True)
class UpstreamHost(AdminHost):
    """The proxy's state; also what its admin port asks of it."""

    router: Router
    pool: ReplicaPool
    client: aiohttp.ClientSession
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    """What replicas are asked with: their API key, where they want one."""
    ended: ApiError | None = None
    """Why every running call ends now; None while they may go on."""
    calls: int = 0
    """Calls that run."""

    def end(self, why: ApiError) -> None:
        """End every call that runs."""
        self.ended = why

    @property
    def model(self) -> str:
        """The name that clients ask for."""
        return self.pool.model

    @property
    def retry_after(self) -> int:
        """Seconds after which a replica that is back would be known."""
        return max(1, math.ceil(self.settings.upstream.check_seconds))

    def may_learn(self, tenant: str) -> bool:
        """Return whether requests of a tenant may be kept, without a query. A name that no header can say may not:
        replicas would take the requests for somebody else's."""
        known = bool(self.store.tenants.last_known([tenant]))
        return self.settings.server.learn and known and tenant.isascii() and tenant.isprintable()


def upstream_headers(settings: UpstreamSettings) -> dict[str, str]:
    """Return what replicas are asked with: their API key, where they want one. Raises BadSetting."""
    if settings.api_key is None:
        return {}
    key = read_secret(settings.api_key, "upstream.api_key", "the replicas' API key").strip()
    return {"Authorization": f"Bearer {key}"}
