"""The dashboard beside a run: the admin port of `osd serve` over the run's own engine and store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from osd.demo.runner.circle import Circle

if TYPE_CHECKING:
    from osd.engine.engine import Engine

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

    @property
    def finished(self) -> int:
        """Nobody asks: no database is told of this run."""
        return 0


@contextmanager
def looking_on(circle: Circle, console: Console) -> Iterator[None]:
    """Serve the dashboard for as long as the block runs, where the plan names a port. Raises BadSetting."""
    port = circle.plan.port
    if port is None:
        yield
        return
    from osd.server.admin.routes import make_admin
    from osd.server.admin.snapshots import Snapshots
    from osd.server.http.keys import KeyRing
    from osd.server.metrics.server import Meters
    from osd.server.process.engine_server import EngineCollector, EngineHost
    from osd.server.process.listen import listen, url
    from osd.server.process.server import LAST_SECONDS, Exposition, listener

    settings = circle.plan.settings
    ring = KeyRing(circle.store.keys, settings.server.keys_poll_seconds)
    host = EngineHost(settings, circle.store, ring, Meters(), None, Steps(circle.engine), circle.engine)
    host.measure = Exposition(host, EngineCollector(circle.engine, host.model)).whole
    with listen(HOST, port, "osd demo --port") as bound:
        server = listener(make_admin(host, Snapshots(host, host.facts), host.inside()))
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
