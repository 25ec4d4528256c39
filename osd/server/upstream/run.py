"""A proxy over replicas, in one process without a model."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from osd.attached.forwarder import forwarding_client
from osd.kernels.host import leave_alone, wake_promptly
from osd.server.errors import ServerStopped
from osd.server.http.keys import KeyRing
from osd.server.metrics import families as m
from osd.server.metrics.families import FamilySet, GroupCollector
from osd.server.metrics.server import Meters
from osd.server.process.listen import Place, Ports
from osd.server.process.server import Backend, Server, listener
from osd.server.processes import Peers
from osd.server.upstream.app import make_upstream_app, replicas
from osd.server.upstream.host import UpstreamHost, upstream_headers
from osd.server.upstream.inside import StoredInside
from osd.server.upstream.replicas import Replica, ReplicaPool
from osd.server.upstream.watch import UpstreamWatch
from router.live import live_router
from storage.settings import Settings
from storage.store import Store


class UpstreamCollector(GroupCollector):
    """A collector for prometheus_client."""

    group = m.UPSTREAM

    def __init__(self, pool: ReplicaPool) -> None:
        self.pool = pool

    def fill(self, families: FamilySet) -> None:
        """Add the replicas' numbers."""
        pool = self.pool
        for name, replica in list(pool.replicas.items()):
            families.add(m.REPLICA_UP, replica.state.value == "up", name, replica.at.draft)
            families.add(m.REPLICA_RUNNING, replica.running, name)
            for status, count in list(replica.answers.items()):
                families.add(m.REPLICA_ANSWERS, count, name, status)
            for reason, count in list(replica.failed.items()):
                families.add(m.REPLICA_FAILURES, count, name, reason)
        for route, count in list(pool.stood_in.items()):
            families.add(m.UPSTREAM_STOOD_IN, count, route)
        families.add(m.UPSTREAM_RETRIES, pool.retries)


class UpstreamBackend(Backend):
    """The replicas of a server."""

    admin_routes = (replicas,)

    def __init__(self, host: UpstreamHost) -> None:
        inside = StoredInside(host.store, host.settings, host.ring)
        super().__init__(f"{socket.gethostname()}:{os.getpid()}", UpstreamCollector(host.pool), inside)
        self.host = host
        self._watch = UpstreamWatch(host)
        self._api = listener(make_upstream_app(host))

    @property
    def listens(self) -> bool:
        """Whether the API's port is answered."""
        return self._api.started

    @property
    def busy(self) -> bool:
        """Whether a request runs."""
        return bool(self.host.calls)

    def facts(self, servers: int) -> dict[str, Any]:
        """Return what a snapshot shows of the replicas."""
        return {"replicas": [replica.facts() for replica in self.host.pool.replicas.values()]}

    async def serve(self, server: Server) -> None:
        """Answer the API's port, and watch the replicas."""
        await self._watch.look_at_replicas()
        watching = asyncio.create_task(self._watch.follow())
        await self._api.serve([server.place.ports.accepting()])
        watching.cancel()

    def cut_off(self) -> None:
        """End the requests that run."""
        self.host.end(ServerStopped())

    def stop(self, force: bool) -> None:
        """Stop listening; with ``force`` without waiting for answers."""
        self._api.end(force=force)


@asynccontextmanager
async def opened(settings: Settings, store: Store, ring: KeyRing, peers: Peers | None) -> AsyncIterator[UpstreamHost]:
    """Open what a proxy needs: the client of its replicas, and its router. Raises BadSetting, StoreError."""
    headers = upstream_headers(settings.upstream)
    router = live_router(store, settings.router)
    try:
        async with forwarding_client(settings.upstream.connect_seconds) as client:
            pool = ReplicaPool(settings.server.model)
            yield UpstreamHost(settings, store, ring, Meters(), peers, pool, router, pool, client, headers)
    finally:
        router.close()


def serve_upstream(
    settings: Settings, store: Store, ring: KeyRing, ports: Ports, ready: Callable[[Sequence[Replica]], None],
    peers: Peers | None = None, replaces: str | None = None,
) -> int:  # fmt: skip
    """Serve until a signal; return the exit status. ``ready`` is called with the replicas once it listens. Raises
    BadSetting before it listens."""

    async def run() -> int:
        async with opened(settings, store, ring, peers) as host:
            place = Place(ports, lambda: ready([*host.pool.replicas.values()]), peers, replaces)
            return await Server(host, UpstreamBackend(host), place).serve()

    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    wake_promptly()
    leave_alone()
    return asyncio.run(run())
