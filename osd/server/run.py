"""One server process: two ports, one event loop, the decode thread, and its end.

The first SIGTERM or Ctrl-C drains: new requests are refused, what runs may finish within ``server.drain_seconds``. A
second one is final.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from osd.engine import Engine
from osd.server.admin import make_admin
from osd.server.app import make_app
from osd.server.chat import read_template
from osd.server.engine_thread import EngineThread
from osd.server.exposition import fill
from osd.server.listen import Ports
from osd.server.meters import Meters
from osd.server.ring import KeyRing
from osd.server.service import Service
from osd.server.snapshot import Snapshots
from storage.settings import Settings
from storage.store import Store

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
LAST_SECONDS = 5.0
"""How long answers that are on their way may take to leave."""
FAILED = 1


class Listener(uvicorn.Server):
    """uvicorn, but for signals: two of them share ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


class Running:
    """A server from its start to its end."""

    def __init__(self, engine: Engine, settings: Settings, store: Store, ring: KeyRing) -> None:
        registry = CollectorRegistry()
        self.thread = EngineThread(engine, settings.server.queue, self._failed)
        template = read_template(settings.server.chat_template)
        self.service = Service(engine, settings, store, self.thread, ring, Meters(registry), template)
        fill(registry, self.service)
        self.apps = make_app(self.service, registry), make_admin(self.service, registry, Snapshots(self.service))
        self.listeners: list[Listener] = []
        self.status = 0
        self._draining: asyncio.Task[None] | None = None

    async def serve(self, ports: Ports, ready: Callable[[], None]) -> int:
        """Until it is told to stop; the exit status. ``ready`` is called once it listens."""
        self.listeners = [_listener(app) for app in self.apps]
        self._take_signals()
        self.thread.start()
        follow = asyncio.create_task(self.service.ring.follow())
        sockets = ports.api, ports.admin
        pairs = zip(self.listeners, sockets, strict=True)
        serving = [asyncio.create_task(listener.serve([bound])) for listener, bound in pairs]
        while not all(listener.started or listener.should_exit for listener in self.listeners):
            await asyncio.sleep(POLL_SECONDS)
        ready()
        await asyncio.gather(*serving)
        follow.cancel()
        await asyncio.to_thread(self.thread.close)
        return self.status

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: int) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        else:
            self.status = 128 + number
            self.thread.end_all()
            self._stop(force=True)

    async def _drain(self) -> None:
        """Refuse what is new, wait for what runs, then end it."""
        self.service.ready = False
        self.thread.draining = True
        log.info("draining", extra={"action": "draining"})
        if not await self._idle(self.service.settings.server.drain_seconds):
            log.warning("requests were cut off: they took too long", extra={"action": "drain_ended"})
            self.thread.end_all()
            await self._idle(LAST_SECONDS)
        self._stop()

    async def _idle(self, seconds: float) -> bool:
        """Wait until nothing runs or waits; False when the time ran out."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self.thread.alive and (self.thread.running or self.thread.waiting):
            if loop.time() >= until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    def _failed(self) -> None:
        """Decoding broke: leave, so that whoever watches the process can start a new one."""
        self.status = FAILED
        self._stop()

    def _stop(self, *, force: bool = False) -> None:
        for listener in self.listeners:
            listener.should_exit, listener.force_exit = True, force


def _listener(app: FastAPI) -> Listener:
    return Listener(uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none", http="h11",
        timeout_graceful_shutdown=int(LAST_SECONDS),
    ))  # fmt: skip


def serve(
    engine: Engine, settings: Settings, store: Store, ring: KeyRing, ports: Ports, ready: Callable[[], None]
) -> int:
    """Serve until a signal; the exit status. Raises BadSetting and PairError before it listens."""

    async def run() -> int:
        return await Running(engine, settings, store, ring).serve(ports, ready)

    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return asyncio.run(run())
