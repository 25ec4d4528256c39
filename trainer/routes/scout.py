"""Periodic discovery of routes in a worker, every so many served requests."""

from __future__ import annotations

import logging

from storage.errors import OsdError
from storage.routes.proposals import RouteProposal
from storage.settings import Settings
from storage.store import Store
from trainer.distil.step import NotFinite
from trainer.lease import RunStopped
from trainer.routes.apply import apply_open
from trainer.routes.discover import Search, discover
from trainer.shutdown import Stop

log = logging.getLogger("osd.trainer")


class RouteDiscovery:
    """A periodic search. It remembers, in this process alone, the number of requests at its last search."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._looked_at: int | None = None

    def look(self, stop: Stop) -> list[RouteProposal]:
        """Search if it is due and return the proposals; empty otherwise, or on an error, which is logged."""
        every = self._settings.router.discover_requests
        if not every:
            return []
        served = sum(row.requests for row in self._store.outcomes.acceptance())
        if self._looked_at is None or served - self._looked_at < every:
            self._looked_at = served if self._looked_at is None else self._looked_at
            return []
        self._looked_at = served
        return self._found(stop)

    def _found(self, stop: Stop) -> list[RouteProposal]:
        def between() -> None:
            if stop.is_set():
                raise RunStopped("the worker ends")

        try:
            found = discover(self._store, self._settings, Search(between=between))
            if self._settings.router.apply_proposals:
                found = apply_open(self._store, found)
        except RunStopped:
            return []
        except (OsdError, NotFinite) as error:
            log.error("no look for routes: %s", error, extra={"action": "discovery_failed"})
            return []
        log.info("%d proposals of routes", len(found), extra={"action": "discovered", "proposals": len(found)})
        return found
