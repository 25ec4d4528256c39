"""A server from its start to its end, whoever decodes for it: the admin port, what it tells of itself, and how it ends.

The first SIGTERM or Ctrl-C drains: new requests are refused, running ones may finish within ``server.drain_seconds``. A
second one is final. `osd servers drain` does the same through the database, and can be undone while something runs.

Where several servers share the port (``peers``), the one that holds the lock answers the admin port, and one that is to
drain while others serve leaves new connections to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from osd.kernels.host import keep_giving_back
from osd.server.admin.routes import make_admin
from osd.server.admin.snapshots import AdminHost, LookInside, Snapshots
from osd.server.metrics.exposition import added, labelled
from osd.server.metrics.store import StoreCollector
from osd.server.process.listen import Place, url
from osd.server.process.presence import EngineDrafts, Presence
from osd.server.processes import ServerLoad
from storage.access.processes import ServerState

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
"""Interval at which a server checks whether it listens, and whether its last requests have ended."""
LAST_SECONDS = 5.0
"""Maximum seconds for answers under way at shutdown."""
LEAD_SECONDS = 0.2
"""Interval at which a server behind a shared port checks whether the admin port became free."""
FAILED = 1


class Listener(uvicorn.Server):
    """A uvicorn server that leaves signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    def end(self, *, force: bool = False) -> None:
        """Stop listening; with ``force`` without waiting for answers."""
        self.should_exit, self.force_exit = True, force


def listener(app: FastAPI) -> Listener:
    """Create a server for an application."""
    return Listener(uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none", http=HttpToolsProtocol,
        timeout_graceful_shutdown=int(LAST_SECONDS),
    ))  # fmt: skip


@contextlib.contextmanager
def in_thread(app: FastAPI, host: AdminHost, bound: socket.socket) -> Iterator[None]:
    """Serve an admin port in a thread for as long as the block runs, where the process does something else."""
    server = listener(app)

    async def serve() -> None:
        following = asyncio.create_task(host.ring.follow())
        await server.serve([bound])
        following.cancel()

    serving = threading.Thread(target=lambda: asyncio.run(serve()), name="osd-dashboard", daemon=True)
    serving.start()
    try:
        yield
    finally:
        host.turn(False)
        server.end()
        serving.join(2 * LAST_SECONDS)


class Backend(ABC):
    """What decodes for a server: its own engine, or replicas. It answers the API's port."""

    admin_routes: Sequence[APIRouter] = ()
    """Its own routes on the admin port."""

    def __init__(self, name: str, collector: Collector, inside: LookInside, drafts: EngineDrafts | None = None) -> None:
        """``name``: the server's in the store. ``collector`` measures it, ``inside`` has its newest requests token by
        token, ``drafts`` are those in its memory, where it has any."""
        self.name, self.collector, self.inside, self.drafts = name, collector, inside, drafts

    @property
    @abstractmethod
    def listens(self) -> bool:
        """Whether it answers the API's port."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a request runs or waits."""

    @abstractmethod
    def facts(self, servers: int) -> dict[str, Any]:
        """Return what a snapshot shows of it, told how many servers share the port."""

    @abstractmethod
    async def serve(self, server: Server) -> None:
        """Answer the API's port until it is stopped."""

    async def measure_api(self) -> bytes | None:
        """Return the metrics of the process that answers the API's port, where it is another one."""
        return None

    def leave_port(self) -> None:  # noqa: B027
        """Leave new connections to the others behind the port."""

    def drain(self, drains: bool) -> None:  # noqa: B027
        """Refuse new requests, or take them again; the host says so too."""

    @abstractmethod
    def cut_off(self) -> None:
        """End the requests that run."""

    @abstractmethod
    def stop(self, force: bool) -> None:
        """Stop answering; with ``force`` without waiting for answers."""

    def close(self) -> None:  # noqa: B027
        """End what was started for it. Waits, so not on the event loop."""


class Exposition:
    """The metrics of a server: the store's, its processes', and those of the others behind the port.

    What both of its processes count is summed. Any of several servers may be scraped: it asks the others for their
    numbers, and shows each under a label of its own, ``worker="0"``.
    """

    def __init__(
        self, host: AdminHost, own: Collector, measure_api: Callable[[], Awaitable[bytes | None]] | None = None
    ) -> None:
        """``own`` has those of what serves in this process."""
        self._host, self._measure_api, self._store = host, measure_api, CollectorRegistry()
        self._store.register(StoreCollector(host.store, host.model))
        host.meters.registry.register(own)
        host.meters.show_load(lambda: host.load.running, lambda: host.load.waiting)

    async def own(self, api: bytes | None = None) -> bytes:
        """Return both processes' metrics; those of the one that answers the API (``api``) are requested unless
        given."""
        if api is None and self._measure_api:
            api = await self._measure_api()
        mine = await asyncio.to_thread(generate_latest, self._host.meters.registry)
        return mine if api is None else await asyncio.to_thread(added, [mine, api])

    async def whole(self, api: bytes | None = None) -> bytes:
        """Return both processes' metrics with what the store counts, and those of the other servers behind the port."""
        own, peers = await self.own(api), self._host.peers
        if peers is not None:
            others = await peers.metrics()
            own = await asyncio.to_thread(labelled, {peers.number: own, **others})
        return await asyncio.to_thread(generate_latest, self._store) + own


class Server:
    """A server. Belongs to one event loop."""

    def __init__(self, host: AdminHost, backend: Backend, place: Place) -> None:
        self.status = 0
        """What the process exits with."""
        self.host, self.backend, self.place, self.peers = host, backend, place, place.peers
        self.exposition = Exposition(host, backend.collector, backend.measure_api)
        host.measure = self.exposition.whole
        snapshots = Snapshots(host, backend.facts)
        self.admin = listener(make_admin(host, snapshots, backend.inside, *backend.admin_routes))
        self.presence = Presence(
            host, backend.name, url(place.ports.api), self._wished_elsewhere, place.replaces, backend.drafts
        )
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None
        self._asked = False
        """Whether it drains because the database asked for it, which may be undone."""

    async def serve(self) -> int:
        """Serve until it is told to stop; return the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled, number)
        beside = [asyncio.create_task(work) for work in (self.host.ring.follow(), keep_giving_back())]
        serving = asyncio.gather(self.backend.serve(self), self._serve_admin())
        while not self._listens():
            await asyncio.sleep(POLL_SECONDS)
        self.presence.begin()
        answering = await self.peers.answer(self.exposition.own, self._load) if self.peers else None
        self.place.ready()
        await serving
        if self.peers and answering:
            answering.close()
            self.peers.leave()
        for task in beside:
            task.cancel()
        await asyncio.to_thread(self.presence.close)
        await asyncio.to_thread(self.backend.close)
        return self.status

    async def _serve_admin(self) -> None:
        """Serve the admin port, which one of several servers holds, from the moment at which this one does."""
        while self.peers and not self.peers.leads():
            if self.admin.should_exit:
                return
            await asyncio.sleep(LEAD_SECONDS)
        await self.admin.serve([self.place.ports.admin])

    def _listens(self) -> bool:
        """Or will not any more. Behind a shared port another server may answer the admin's."""
        return self.admin.should_exit or (self.backend.listens and (bool(self.peers) or self.admin.started))

    def _load(self) -> ServerLoad:
        return ServerLoad(self.host.ready, self.host.load.running, self.host.load.waiting)

    # how it ends

    def fail(self) -> None:
        """Exit after decoding broke, so that the process's supervisor can start a new one."""
        self.status = FAILED
        self._stop(force=False)

    def _wished_elsewhere(self, drains: bool) -> None:
        self._loop.call_soon_threadsafe(self.wish, drains)

    def wish(self, drains: bool) -> None:
        """Begin or end draining on request of the database."""
        if drains and self._draining is None:
            self._begin_drain(asked=True)
        elif not drains and self._asked and self._draining is not None:
            self._draining.cancel()
            self._draining, self._asked = None, False
            self._turn(drains=False)

    def _signalled(self, number: int) -> None:
        if self._draining is None:
            self._begin_drain(asked=False)
        elif self._asked:
            self._asked = False  # it drains in any case now; the next signal is final
        else:
            self.status = 128 + number
            self.backend.cut_off()
            self._stop(force=True)

    def _begin_drain(self, *, asked: bool) -> None:
        self._asked = asked
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        """Refuse what is new, wait for what runs, then end it."""
        self.host.turn(False)  # before the others are asked, who may drain too
        if self._asked and self.peers and any(other.serving for other in await self.peers.loads()):
            self.backend.leave_port()
        self._turn(drains=True)
        if not await self._idle(self.host.settings.server.drain_seconds):
            log.warning("requests were cut off: they took too long", extra={"action": "drain_ended"})
            self.backend.cut_off()
            await self._idle(LAST_SECONDS)
        self._asked = False
        self._stop(force=False)

    def _turn(self, *, drains: bool) -> None:
        """Tell everybody that it drains, or serves again."""
        self.host.turn(not drains)
        self.backend.drain(drains)
        self.presence.turn(ServerState.DRAINING if drains else ServerState.SERVING)
        log.info("draining" if drains else "serving again", extra={"action": "draining" if drains else "drain_undone"})

    async def _idle(self, seconds: float) -> bool:
        """Wait until nothing runs or waits; return False when the time ran out."""
        until = self._loop.time() + seconds
        while self.backend.busy:
            if self._loop.time() >= until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    def _stop(self, *, force: bool) -> None:
        self.admin.end(force=force)
        self.backend.stop(force)
