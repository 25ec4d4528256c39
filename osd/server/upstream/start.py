"""What stands between the command and a proxy: what must be installed, and how many processes share the port."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from osd.server.start import key_ring
from storage.distribution import needing

if TYPE_CHECKING:
    from osd.server.http.keys import KeyRing
    from osd.server.process.listen import Ports
    from osd.server.processes import Peers
    from storage.settings import Settings

Serve = Callable[..., int]


def upstream_parts() -> tuple[Serve, Serve]:
    """Import what serves in one process, and in several. Raises BadSetting where it is not installed."""
    with needing("serve", "osd serve --upstream"):
        from osd.server.upstream.run import serve_upstream
    return serve_upstream, serve_several


def serve_several(settings: Settings, ring: KeyRing, ports: Ports, ready: Callable[[], None]) -> int:
    """Serve replicas in several processes behind the port (``fleet.processes``); return the exit status."""
    from osd.server.processes import Supervisor
    from osd.server.upstream.run import serve_upstream
    from storage.store import open_store

    def work(peers: Peers, replaces: str | None) -> int:
        with open_store(settings) as store:
            keys = key_ring(store, settings, required=ring.required)
            return serve_upstream(settings, store, keys, ports, lambda _: None, peers, replaces)

    return Supervisor(work, settings.fleet.processes, ready).run()
