"""Prometheus metrics of the store, summed over all servers that share it, so scrape one exporter a store."""

from __future__ import annotations

import logging
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from osd.server.metrics import families as m
from osd.server.metrics.families import Family, FamilySet, GroupCollector
from storage.access.processes import ServerState
from storage.errors import NotFound, OsdError
from storage.insights.recent import summed
from storage.insights.service import Answers
from storage.records import now, ratio
from storage.sql.outcome_tables import OutcomeRow
from storage.sql.spans import MINUTE
from storage.store import Store

log = logging.getLogger(__name__)

ROUTES = 100
"""Maximum number of routes with a label of their own; later ones share ``other``."""
OTHER, NONE = "other", ""
ENDED = ("published", "rejected", "failed")


class StoreCollector(GroupCollector):
    """A collector for prometheus_client. A scrape changes nothing; thread-safe."""

    group = m.STORE

    def __init__(self, store: Store, model_name: str = "osd", routes: int = ROUTES) -> None:
        """Collect from a store; ``model_name`` is the label that vLLM's four metrics carry."""
        self.store, self.answers, self.model_name, self.routes = store, Answers(store), model_name, routes
        self._named: dict[str, str] = {}

    def collect(self) -> Iterable[Family]:
        """Return all families; where the store is unreachable, ``osd_store_up`` 0 alone."""
        began, families = time.perf_counter(), FamilySet(m.STORE)
        try:
            self.fill(families)
        except OsdError as error:
            log.error("metrics: %s", error, extra={"action": "scrape_failed"})
            families = FamilySet([m.UP])
            families.add(m.UP, 0)
            return families
        families.add(m.UP, 1)
        families.add(m.TOOK, time.perf_counter() - began)
        return families

    def fill(self, families: FamilySet) -> None:
        """Add what the store says. Raises OsdError."""
        self._decoding(families)
        self._places(families)
        self._attached(families)
        self._training(families)
        self._drafts(families)
        self._kept(families)
        disk = shutil.disk_usage(self.store.directory)
        families.add(m.DISK_FREE, disk.free)
        families.add(m.DISK_SIZE, disk.total)

    def _decoding(self, families: FamilySet) -> None:
        """Add sums by route and draft, and vLLM's and SGLang's over all of them."""
        drafts = {version.id: version.draft for version in self.store.versions.list()}
        sums: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: dict.fromkeys(m.SUMS, 0.0))
        for row in self.answers.acceptance(by=["route", "version"]):
            group = sums[(self._label(row.by["route"]), drafts.get(row.by["version"], NONE))]
            for name in m.SUMS:
                group[name] += getattr(row, name) / (1000 if name.endswith("_ms") else 1)
        for (route, draft), group in sums.items():
            for name, metric in m.SUMS.items():
                families.add(metric, group[name], route, draft)
        for metric, name in ((m.DRAFT_TOKENS, "drafted"), (m.ACCEPTED_TOKENS, "accepted")):
            families.add(metric, sum(group[name] for group in sums.values()), self.model_name, 0)
        for name, metric in m.SGLANG_SUMS.items():
            families.add(metric, sum(group[name] for group in sums.values()), self.model_name)
        names, newest = ("emitted", "rounds", "accepted", "drafted"), OutcomeRow.finished_at >= now() - MINUTE
        emitted, rounds, accepted, drafted = summed(self.store.db, names, newest)
        families.add(m.SGLANG_LENGTH, ratio(emitted, rounds) or 0, self.model_name)
        families.add(m.SGLANG_RATE, ratio(accepted, drafted) or 0, self.model_name)

    def _label(self, route: str) -> str:
        """Return a route's label, fixed for the exporter's life: a counter whose label changed would jump."""
        if route not in self._named:
            self._named[route] = route if len(self._named) < self.routes else OTHER
        return self._named[route]

    def _places(self, families: FamilySet) -> None:
        """Add counts by position; vLLM's number of drafts is that of tokens drafted at the first position."""
        places = self.answers.positions()
        for place in places:
            families.add(m.PLACE_DRAFTED, place.drafted, place.position)
            families.add(m.PLACE_ACCEPTED, place.accepted, place.position)
            families.add(m.PLACE_REFUSED, place.refused, place.position)
            families.add(m.ACCEPTED_PER_POS, place.accepted, self.model_name, 0, place.position)
        families.add(m.DRAFTS, places[0].drafted if places else 0, self.model_name, 0)

    def _attached(self, families: FamilySet) -> None:
        """Add each attached engine: whether it is reached, what it serves, and the sums of its answers."""
        alive = {worker.id for worker in self.store.servers.list() if worker.state is not ServerState.GONE}
        sums = {row.by["worker"]: row for row in self.answers.acceptance(by=["worker"])}
        for engine in self.store.engines.list():
            families.add(m.ATTACHED_UP, engine.name in alive, engine.name, engine.draft)
            for version in self.store.versions.served_by(engine.name).values():
                families.add(m.ATTACHED_VERSION, self.store.versions.get(version).number, engine.name, engine.draft)
            families.add(m.ATTACHED_DROPPED, engine.facts.get("harvest", {}).get("dropped", 0), engine.name)
            if said := engine.facts.get("gain"):
                families.add(m.ATTACHED_DRAFTING, any(one["length"] for one in said["batches"]), engine.name)
                if said["gain"] is not None:
                    families.add(m.ATTACHED_GAIN, said["gain"], engine.name)
            for name, metric in m.ATTACHED_SUMS.items():
                families.add(metric, getattr(sums.get(engine.name), name, 0), engine.name)

    def _training(self, families: FamilySet) -> None:
        for total in self.answers.run_totals():
            for state in ENDED:
                families.add(m.RUNS, getattr(total, state), total.draft, state)
            families.add(m.RUN_SECONDS, total.seconds, total.draft)
            families.add(m.RUN_POSITIONS, total.positions, total.draft)
            families.add(m.LAST_RUN, total.last_start, total.draft)

    def _drafts(self, families: FamilySet) -> None:
        for draft in sorted({version.draft for version in self.store.versions.list()}):
            with suppress(NotFound):  # an acceptance head that no gate has let through yet
                families.add(m.VERSION, self.store.versions.current(draft).number, draft)
            families.add(m.SERVERS, len(self.store.versions.serving(draft)), draft)
            families.add(m.OLDEST, self.store.samples.waiting(draft).oldest_age_seconds or 0, draft)

    def _kept(self, families: FamilySet) -> None:
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for row in self.store.samples.stats():
            group = sums[self._label(row.route)]
            for at, value in enumerate((row.waiting, row.requests, row.bytes)):
                group[at] += value
        for route, values in sums.items():
            for metric, value in zip((m.WAITING, m.KEPT_REQUESTS, m.KEPT_BYTES), values, strict=True):
                families.add(metric, value, route)
