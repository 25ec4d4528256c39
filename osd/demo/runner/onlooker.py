"""The dashboard beside a run: the admin port of `osd serve` over the run's own engine and store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from rich.console import Console

from osd.demo.runner.circle import Circle

if TYPE_CHECKING:
    from osd.engine.engine import Engine
    from osd.server.process.engine_thread import EngineThread

HOST = "127.0.0.1"
STEP_SECONDS = 0.05


class Steps:
    """What the dashboard asks of the thread that steps the engine; here that is the run itself."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._engine.rows)

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._engine.admission.waiting)


@contextmanager
def looking_on(circle: Circle, console: Console) -> Iterator[None]:
    """Serve the dashboard for as long as the block runs, where the plan names a port. Raises BadSetting."""
    port = circle.plan.port
    if port is None:
        yield
        return
    from prometheus_client import CollectorRegistry

    from osd.server.admin import make_admin
    from osd.server.dashboard.inside import inside_of
    from osd.server.exposition import Exposition
    from osd.server.http.ring import KeyRing
    from osd.server.meters import Meters
    from osd.server.metrics.engine import EngineCollector
    from osd.server.process.host import Host
    from osd.server.process.listen import listen, url
    from osd.server.process.listener import LAST_SECONDS, listener
    from osd.server.process.snapshot import Snapshots, engine_facts

    settings = circle.plan.settings
    ring = KeyRing(circle.store.keys, settings.server.keys_poll_seconds)
    thread = cast("EngineThread", Steps(circle.engine))
    host = Host(circle.engine, settings, circle.store, thread, ring, Meters(CollectorRegistry()))
    host.measure = Exposition(host, EngineCollector(circle.engine, host.model)).whole
    with listen(HOST, port, "osd demo --port") as bound:
        server = listener(make_admin(host, Snapshots(host, engine_facts(host)), inside_of(host)))
        serving = threading.Thread(target=server.run, args=([bound],), name="osd-dashboard", daemon=True)
        serving.start()
        console.print(f"Dashboard: {url(bound)}/dashboard", highlight=False, soft_wrap=True)
        try:
            yield
        finally:
            host.ready, server.should_exit = False, True
            serving.join(2 * LAST_SECONDS)


def stay(circle: Circle, console: Console) -> None:
    """Leave the dashboard open until Ctrl-C; versions may be promoted and taken back, so the engine goes on."""
    console.print("Everything was served. The dashboard stays open; Ctrl-C ends it.", soft_wrap=True)
    try:
        while True:
            circle.engine.step()
            time.sleep(STEP_SECONDS)
    except KeyboardInterrupt:
        return
