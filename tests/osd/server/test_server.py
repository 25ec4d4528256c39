"""How a server ends, over a back-end that does as it is told: signals, the database's wish, and a failure."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

from osd.server.admin.snapshots import AdminHost
from osd.server.http.keys import KeyRing
from osd.server.metrics.families import ENGINE, GroupCollector
from osd.server.metrics.server import Meters
from osd.server.process.listen import Place, Ports, listen
from osd.server.process.server import Backend, Server
from storage.settings import load_settings
from storage.store import Store
from tests.support.waiting import PATIENCE


class Host(AdminHost):
    model = "toy"


class Collector(GroupCollector):
    group = ENGINE

    def fill(self, families: Any) -> None:
        """Nothing."""


class Told(Backend):
    """Notes what it is told; one request runs until it is cut off or finished."""

    listens = busy = True

    def __init__(self) -> None:
        super().__init__("here:1", Collector(), SimpleNamespace(allowed=False))
        self.told: list[Any] = []
        self._stopped = asyncio.Event()

    def facts(self, servers: int) -> dict[str, Any]:
        return {}

    async def serve(self, server: Server) -> None:
        await self._stopped.wait()

    def drain(self, drains: bool) -> None:
        self.told.append(("drain", drains))

    def cut_off(self) -> None:
        self.told.append("cut off")
        self.busy = False

    def stop(self, force: bool) -> None:
        self.told.append(("stop", force))
        self._stopped.set()

    def close(self) -> None:
        self.told.append("close")


def served(store: Store, body: Callable[[Server, Told], Awaitable[None]], **settings: Any) -> Sequence[Any]:
    """The exit status, and what the back-end was told, where ``body`` is run beside a server."""

    async def run() -> Sequence[Any]:
        load, backend = SimpleNamespace(running=1, waiting=0, finished=0), Told()
        host = Host(load_settings(**settings), store, KeyRing(store.keys, 1.0), Meters(), None, load)
        ready = asyncio.Event()
        ports = Ports(listen("127.0.0.1", 0, "api"), listen("127.0.0.1", 0, "admin"))
        server = Server(host, backend, Place(ports, ready.set))
        serving = asyncio.create_task(server.serve())
        await asyncio.wait_for(ready.wait(), 60)
        await body(server, backend)
        status = await asyncio.wait_for(serving, 60)
        ports.api.close()
        return [status, *backend.told]

    return asyncio.run(run())


async def comes(condition: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        await asyncio.sleep(0.01)


async def signalled(backend: Told, number: int, told: Any) -> None:
    """Send a signal to this process; wait until the back-end was told something."""
    os.kill(os.getpid(), number)
    await comes(lambda: told in backend.told, str(told))


def test_what_runs_may_finish_and_no_longer(store: Store) -> None:
    async def finishes(server: Server, backend: Told) -> None:
        await signalled(backend, signal.SIGTERM, ("drain", True))
        assert not server.host.ready
        await comes(lambda: [row.state.value for row in store.servers.list()] == ["draining"], "the store knows it")
        backend.busy = False

    async def never_ends(server: Server, backend: Told) -> None:
        await signalled(backend, signal.SIGINT, "cut off")

    end = [("stop", False), "close"]
    assert served(store, finishes) == [0, ("drain", True), *end]
    assert store.servers.list() == []
    assert served(store, never_ends, server={"drain_seconds": 0.1}) == [0, ("drain", True), "cut off", *end]


def test_a_second_signal_is_final(store: Store) -> None:
    async def twice(server: Server, backend: Told) -> None:
        await signalled(backend, signal.SIGINT, ("drain", True))
        await signalled(backend, signal.SIGTERM, "cut off")

    assert served(store, twice)[:4] == [128 + signal.SIGTERM, ("drain", True), "cut off", ("stop", True)]
