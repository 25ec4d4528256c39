"""A front over replicas from its start to its end, in one process without a model."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from osd.kernels.host import keep_giving_back, leave_alone, wake_promptly
from osd.server.admin import make_admin
from osd.server.exposition import Exposition
from osd.server.http.errors import ServerStopped
from osd.server.http.ring import KeyRing
from osd.server.meters import Meters
from osd.server.metrics.upstream import UpstreamCollector
from osd.server.process.drain import POLL_SECONDS, ServerDrain
from osd.server.process.listen import Ports, url
from osd.server.process.listener import listener, serve_leading
from osd.server.process.snapshot import Snapshots
from osd.server.upstream.app import make_upstream_app, replicas
from osd.server.upstream.client import upstream_client, upstream_headers
from osd.server.upstream.host import UpstreamHost
from osd.server.upstream.inside import StoredInside
from osd.server.upstream.pool import ReplicaPool
from osd.server.upstream.replica import UpstreamReplica
from osd.server.upstream.watch import UpstreamWatch
from osd.server.workers.peers import Peers, WorkerLoad
from osd.server.workers.presence import Presence
from router.live import live_router
from storage.access.workers import WorkerState
from storage.settings import Settings
from storage.store import Store


class UpstreamRunning:
    """A front from its start to its end."""

    def __init__(self, host: UpstreamHost, ports: Ports, replaces: str | None = None) -> None:
        """``replaces``: a process that ended without a word, in whose place this one was started."""
        self.host, self.ports = host, ports
        exposition = Exposition(host, UpstreamCollector(host.pool))
        host.measure, self._own_metrics = exposition.whole, exposition.own
        self.watch = UpstreamWatch(host.pool, host.settings, host.store, host.client, host.headers)
        self.api = listener(make_upstream_app(host))
        inside = StoredInside(host.store, host.settings, host.ring)
        admin = make_admin(host, Snapshots(host, self._facts), inside)
        admin.include_router(replicas)
        self.admin = listener(admin)
        self.drain = ServerDrain(self, host.settings.server.drain_seconds)
        loop = asyncio.get_running_loop()
        self.presence = Presence(
            host.store, host.settings.fleet, f"{socket.gethostname()}:{os.getpid()}", url(ports.api), host.pool,
            lambda drains: loop.call_soon_threadsafe(self.drain.wish, drains), replaces,
        )  # fmt: skip

    async def serve(self, ready: Callable[[], None]) -> int:
        """Until it is told to stop; the exit status. ``ready`` is called once it listens."""
        self.drain.take_signals()
        await self.watch.look()
        host, peers = self.host, self.host.peers
        beside = [asyncio.create_task(work) for work in (host.ring.follow(), self.watch.follow(), keep_giving_back())]
        serving = [
            asyncio.create_task(self.api.serve([self.ports.accepting()])),
            asyncio.create_task(serve_leading(self.admin, self.ports.admin, peers)),
        ]  # fmt: skip
        while not self._listens():
            await asyncio.sleep(POLL_SECONDS)
        self.presence.begin()
        answering = await peers.answer(self._own_metrics, self._load) if peers else None
        ready()
        await asyncio.gather(*serving)
        if peers and answering:
            answering.close()
            peers.leave()
        for task in beside:
            task.cancel()
        await asyncio.to_thread(self.presence.close)
        return self.drain.status

    def _listens(self) -> bool:
        """Or will not any more. Behind a shared port another process may answer the admin's."""
        return self.admin.should_exit or (self.api.started and (self.host.peers is not None or self.admin.started))

    def _facts(self, _workers: int) -> dict[str, object]:
        return {"replicas": [replica.facts() for replica in self.host.pool.replicas.values()]}

    def _load(self) -> WorkerLoad:
        return WorkerLoad(self.host.ready, self.host.pool.running, 0)

    @property
    def busy(self) -> bool:
        """Whether a request runs."""
        return bool(self.host.calls)

    async def leave(self, asked: bool) -> None:
        """Do nothing: what comes is refused as soon as it drains."""

    def say(self, drains: bool) -> None:
        """Tell the database, and who asks whether it is ready, that it drains, or serves again."""
        self.host.ready = not drains
        self.presence.turn(WorkerState.DRAINING if drains else WorkerState.SERVING)

    def cut_off(self) -> None:
        """End the requests that run."""
        self.host.ended = ServerStopped()

    def stop(self, force: bool) -> None:
        """Stop listening; with ``force`` without waiting for answers."""
        for one in (self.api, self.admin):
            one.should_exit, one.force_exit = True, force


@asynccontextmanager
async def opened(settings: Settings, store: Store, ring: KeyRing, peers: Peers | None) -> AsyncIterator[UpstreamHost]:
    """Open what a front needs: the client of its replicas, and its router. Raises BadSetting, StoreError."""
    headers = upstream_headers(settings.upstream)
    router = live_router(store, settings.router)
    try:
        async with upstream_client(settings.upstream) as client:
            pool, meters = ReplicaPool(settings.server.model), Meters(CollectorRegistry())
            yield UpstreamHost(settings, store, ring, meters, router, pool, client, headers, peers)
    finally:
        router.close()


def serve_upstream(
    settings: Settings, store: Store, ring: KeyRing, ports: Ports, ready: Callable[[Sequence[UpstreamReplica]], None],
    peers: Peers | None = None, replaces: str | None = None,
) -> int:  # fmt: skip
    """Serve until a signal; return the exit status. ``ready`` is called with the replicas once it listens. Raises
    BadSetting before it listens."""

    async def run() -> int:
        async with opened(settings, store, ring, peers) as host:
            return await UpstreamRunning(host, ports, replaces).serve(lambda: ready([*host.pool.replicas.values()]))

    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    wake_promptly()
    leave_alone()
    return asyncio.run(run())
