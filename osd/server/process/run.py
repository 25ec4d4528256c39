"""One server: the process that decodes, with the admin port, beside the one that answers HTTP, and their shutdown
(:mod:`osd.server.process.drain`).

Where several processes share the port (``peers``), the one that holds the lock answers the admin port, and one that is
to drain while others serve leaves new connections to them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from osd.engine.engine import Engine
from osd.kernels.host import keep_giving_back, leave_alone
from osd.server.admin import make_admin
from osd.server.dashboard.inside import inside_of
from osd.server.exposition import Exposition
from osd.server.http.ring import KeyRing
from osd.server.meters import Meters
from osd.server.metrics.engine import EngineCollector
from osd.server.process.drain import POLL_SECONDS, ServerDrain
from osd.server.process.engine_thread import EngineThread
from osd.server.process.front import FAILED, Front
from osd.server.process.host import Host
from osd.server.process.ipc import Endpoint
from osd.server.process.listen import Ports, url
from osd.server.process.listener import listener, serve_leading
from osd.server.process.snapshot import Snapshots, engine_facts
from osd.server.workers.peers import Peers, WorkerLoad
from osd.server.workers.presence import EngineDrafts, Presence
from storage.access.workers import WorkerState
from storage.settings import Settings
from storage.store import Store

log = logging.getLogger(__name__)

MEASURE_SECONDS = 1.0
"""How long the process for HTTP may take to say what it has measured: less than a peer waits for the two of us."""


class Running:
    """A server from its start to its end."""

    def __init__(
        self, engine: Engine, settings: Settings, store: Store, ring: KeyRing, front: Front,
        peers: Peers | None = None, replaces: str | None = None,
    ) -> None:  # fmt: skip
        """``replaces``: a process that ended without a word, in whose place this one was started."""
        self.peers, self.front, self._replaces = peers, front, replaces
        self.thread = EngineThread(engine, settings.server.queue, self._failed, front.jobs)
        self.host = Host(engine, settings, store, self.thread, ring, Meters(CollectorRegistry()), peers)
        self.exposition = Exposition(self.host, EngineCollector(engine, self.host.model), self._measure_front)
        self.host.measure = self.exposition.whole
        snapshots = Snapshots(self.host, engine_facts(self.host))
        self.admin = listener(make_admin(self.host, snapshots, inside_of(self.host)))
        self.drain = ServerDrain(self, settings.server.drain_seconds)
        self._front_listens = asyncio.Event()

    async def serve(self, ports: Ports, ready: Callable[[], None]) -> int:
        """Until it is told to stop; the exit status. ``ready`` is called once it listens."""
        self.link = Endpoint(self.front.end, asyncio.get_running_loop())
        self.drain.take_signals()
        self.thread.start()
        beside = [asyncio.create_task(work) for work in (self.host.ring.follow(), keep_giving_back())]
        presence = self._make_presence(ports)
        admin = serve_leading(self.admin, ports.admin, self.peers)
        serving = [asyncio.create_task(self._serve_api()), asyncio.create_task(admin)]
        while not self._listens():
            await asyncio.sleep(POLL_SECONDS)
        presence.begin()
        answering = await self.peers.answer(self.exposition.own, self._load) if self.peers else None
        ready()
        await asyncio.gather(*serving)
        if self.peers and answering:
            answering.close()
            self.peers.leave()
        for task in beside:
            task.cancel()
        await asyncio.to_thread(presence.close)
        await asyncio.to_thread(self.thread.close)
        await asyncio.to_thread(self.front.reap)
        return self.drain.status

    def _listens(self) -> bool:
        """Or will not any more. Behind a shared port another process may answer the admin's."""
        return self.admin.should_exit or (self._front_listens.is_set() and (bool(self.peers) or self.admin.started))

    async def _serve_api(self) -> None:
        """As long as the process for HTTP lives."""
        self.link.say("begin", self.host.facts)
        await self.link.listen({"listening": self._front_listens.set, "metrics": self._metrics})
        if not self.admin.should_exit:
            log.error("the process for HTTP has ended", extra={"action": "front_ended"})
            self._failed()

    async def _metrics(self, measured: str) -> str:
        """Answer GET /metrics for the process for HTTP, which says what it has measured itself."""
        return (await self.exposition.whole(measured.encode())).decode()

    async def _measure_front(self) -> bytes | None:
        """Return what the process for HTTP has measured; None where it does not say in time."""
        try:
            async with asyncio.timeout(MEASURE_SECONDS):
                text: str = await self.link.ask("measure")
                return text.encode()
        except (ConnectionError, TimeoutError):
            return None

    def _make_presence(self, ports: Ports) -> Presence:
        loop = asyncio.get_running_loop()
        engine = self.host.engine
        assert engine.recorder is not None
        self.presence = Presence(
            self.host.store, self.host.settings.fleet, engine.recorder.worker, url(ports.api), self.thread,
            lambda drains: loop.call_soon_threadsafe(self.drain.wish, drains), self._replaces, EngineDrafts(engine),
        )  # fmt: skip
        return self.presence

    def _load(self) -> WorkerLoad:
        return WorkerLoad(self.host.ready, self.thread.running, self.thread.waiting)

    @property
    def busy(self) -> bool:
        """Whether a request runs or waits."""
        return self.thread.alive and bool(self.thread.running or self.thread.waiting)

    async def leave(self, asked: bool) -> None:
        """Leave new connections to the processes that share the port, where one of them serves on."""
        self.host.ready = False  # before the others are asked, who may drain too
        if asked and self.peers and any(other.serving for other in await self.peers.loads()):
            self.link.say("leave")

    def say(self, drains: bool) -> None:
        """Tell the process for HTTP, decoding and the database that it drains, or serves again."""
        self.host.ready, self.thread.draining = not drains, drains
        self.link.say("ready", not drains)
        if not drains:
            self.link.say("return")
        self.presence.turn(WorkerState.DRAINING if drains else WorkerState.SERVING)

    def cut_off(self) -> None:
        """End the requests that run."""
        self.thread.end_all()

    def stop(self, force: bool) -> None:
        """Stop listening; with ``force`` without waiting for answers."""
        self.admin.should_exit, self.admin.force_exit = True, force
        self.link.say("stop", force)

    def _failed(self) -> None:
        """Exit after decoding broke, so that the process's supervisor can start a new one."""
        self.drain.status = FAILED
        self.stop(force=False)


def serve(
    engine: Engine, settings: Settings, store: Store, ring: KeyRing, front: Front, ports: Ports,
    ready: Callable[[], None], peers: Peers | None = None, replaces: str | None = None,
) -> int:  # fmt: skip
    """Serve until a signal; return the exit status. Raises BadSetting and PairError before it listens."""

    async def run() -> int:
        return await Running(engine, settings, store, ring, front, peers, replaces).serve(ports, ready)

    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    leave_alone()
    return asyncio.run(run())
