"""The admin port of `osd attach`: the dashboard over engines that are not ours, beside what takes their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import generate_latest

from osd.server.admin.routes import make_admin
from osd.server.admin.snapshots import AdminHost, Snapshots
from osd.server.http.keys import KeyRing
from osd.server.metrics.exposition import registry
from osd.server.metrics.server import Meters
from osd.server.metrics.store import StoreCollector
from osd.server.process.listen import check_address, is_local, listen, url
from osd.server.process.server import in_thread
from osd.server.upstream.inside import StoredInside
from storage.settings import Settings
from storage.store import Store


class NoLoad:
    """What this process decodes itself: nothing."""

    running = waiting = finished = 0


@dataclass(slots=True)
class AttachHost(AdminHost):
    """The state behind its routes."""

    @property
    def model(self) -> str:
        """What the page is headed by."""
        return self.settings.server.model or "attached engines"


@contextmanager
def dashboard(store: Store, settings: Settings) -> Iterator[str | None]:
    """Serve it for as long as the block runs; yield its URL, None where it is off. Raises BadSetting, StoreError."""
    mine = settings.attach
    if mine.admin_port == "off":
        yield None
        return
    ring = KeyRing(store.keys, settings.server.keys_poll_seconds, local_only=is_local(mine.admin_host))
    check_address(mine.admin_host, "attach.admin_host", guarded=ring.needed)
    host, numbers = AttachHost(settings, store, ring, Meters(), None, NoLoad()), registry([StoreCollector(store)])
    host.measure = lambda: asyncio.to_thread(generate_latest, numbers)
    app = make_admin(host, Snapshots(host, lambda _: {}), StoredInside(store, settings, ring))
    with listen(mine.admin_host, mine.admin_port, "attach.admin_port") as bound, in_thread(app, host, bound):
        yield url(bound)
