"""A new version on one worker first (``fleet.canary``): what this worker should serve, and whether its trial goes well.

The database says who tries a version (:mod:`storage.versions.canaries`). While both serve, that worker compares how
its requests went with how the others' went under the version that they stay at. A look is taken when its requests have
doubled, from a quarter of ``fleet.canary_requests`` on; look j is taken at level (1 − canary_confidence) / 2^j, so all
looks together take back a version that is no worse with probability 1 − canary_confidence at most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from osd.hotswap.canary_comparison import CanaryFinding, compare
from storage import records
from storage.errors import UnknownDraft
from storage.insights.recent import ServedPart, served
from storage.records import DraftVersion
from storage.settings import FleetSettings
from storage.store import Store
from storage.versions.canaries import Canary, CanaryStage

log = logging.getLogger(__name__)

MOST = 16
"""Requests of a side that are looked at, as a multiple of ``canary_requests``."""
FIRST = 4
"""The first look is taken at this part of ``canary_requests``."""


class Trial:
    """One worker's part. Used by one thread."""

    def __init__(self, store: Store, settings: FleetSettings, worker: str) -> None:
        self.store, self.settings, self.worker = store, settings, worker
        self._stages: dict[str, CanaryStage] = {}
        self._look_at = 0.0

    @property
    def on(self) -> bool:
        """Whether versions come in stages at all."""
        return self.settings.canary

    def version(self, draft: str) -> DraftVersion | None:
        """Return the version that this worker should serve; None for a draft without weights. Raises StoreError."""
        try:
            stage = self._stages[draft] = self.store.canaries.stage(draft, self.worker)
        except UnknownDraft:
            return None
        if stage.lost and stage.canary:
            self._take_back(stage.canary, f"{stage.canary.claims} workers were lost while they tried it")
        return stage.version

    def tries(self, version: DraftVersion) -> bool:
        """Return whether this worker tries the version."""
        stage = self._stages.get(version.draft)
        canary = stage.canary if stage else None
        return canary is not None and (canary.version, canary.worker) == (version.id, self.worker)

    def failed(self, version: DraftVersion, reason: str) -> None:
        """Take back a version that does not load or run, if this worker was to try it. Raises StoreError."""
        canary = self._stages[version.draft].canary if self.tries(version) else None
        if canary:
            self._take_back(canary, f"{self.worker} could not serve it: {reason}")

    def look(self) -> None:
        """Judge what this worker tries, where it is time. Raises StoreError."""
        if not self.on or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + self.settings.heartbeat_seconds
        for canary in self.store.canaries.watched(self.worker):
            self._judge(canary)

    def _judge(self, canary: Canary) -> None:
        tried, others = self._served(canary.version, canary), self._served(canary.base, canary)
        done = sum(one.requests for one in tried)
        over = records.now() - canary.began_at >= self.settings.canary_seconds
        enough = done >= self.settings.canary_requests
        if not (over or enough or done >= self.settings.canary_requests / FIRST * 2**canary.looks):
            return
        look = canary.looks + 1
        found = compare(tried, others, 1 - (1 - self.settings.canary_confidence) / 2**look)
        facts = _facts(found, look, done)
        if found and found.worse:
            self._take_back(canary, _why(found, canary), facts)
        elif over or (enough and found):
            why = "it is not worse than what the others serve" if found and enough else "its time was over"
            self._release(canary, why, facts)
        elif found:
            self.store.canaries.note_look(canary.version, facts)

    def _served(self, version: str, canary: Canary) -> list[ServedPart]:
        return served(self.store.db, version, canary.began_at, MOST * self.settings.canary_requests)

    def _release(self, canary: Canary, why: str, facts: Mapping[str, Any]) -> None:
        if self.store.canaries.release(canary.version, {**facts, "reason": why}):
            log.info("%s is for all workers now: %s", canary.version, why, extra={"action": "canary_released"})

    def _take_back(self, canary: Canary, why: str, facts: Mapping[str, Any] | None = None) -> None:
        """First in the ledger, which is what counts; a worker that dies in between leaves nothing to do."""
        self.store.versions.take_back(canary.version, why, to=canary.base)
        if self.store.canaries.take_back(canary.version, {**(facts or {}), "reason": why}):
            log.warning("%s is taken back: %s", canary.version, why, extra={"action": "canary_taken_back"})


def _facts(found: CanaryFinding | None, look: int, done: int) -> dict[str, Any]:
    return {"look": look, "requests": done} | (asdict(found) if found else {})


def _why(found: CanaryFinding, canary: Canary) -> str:
    return (
        f"on {found.requests} requests of one worker its {found.measure} was {found.after:.3f}, that of {canary.base} "
        f"on {found.others} requests of the others {found.before:.3f}: worse by at least {-found.high:.3f} with "
        f"confidence {found.confidence:.5f}"
    )
