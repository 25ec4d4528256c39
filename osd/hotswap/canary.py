"""A new version on one worker first (``fleet.canary``): what this worker should serve, and whether its trial goes well.

The database says who tries a version (:mod:`storage.versions.canaries`). While both serve, that worker compares how
its requests went with how the others' went under the version that they stay at. A look is taken when its requests have
doubled, from a quarter of ``fleet.canary_requests`` on; look j is taken at level (1 − canary_confidence) / 2^j, so all
looks together take back a version that is no worse with probability 1 − canary_confidence at most.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from osd.hotswap.follower import Follower
from storage import records
from storage.errors import UnknownDraft
from storage.insights.recent import ServedPart, served
from storage.insights.statistics import Bucket, Rate, rate, student
from storage.records import DraftVersion
from storage.settings import FleetSettings, Settings
from storage.store import Store
from storage.versions.canaries import Canary, CanaryStage

Measure = Callable[[ServedPart], Bucket]
MEASURES: dict[str, Measure] = {
    "acceptance": lambda one: (one.accepted, one.judged),
    "tokens a round": lambda one: (one.emitted, one.rounds),
}


@dataclass(frozen=True, slots=True)
class CanaryFinding:
    """What a look found."""

    measure: str
    requests: int
    """Outcomes of the tried version."""
    others: int
    before: float
    """What the others' version has, with the tried one's shares of the routes."""
    after: float
    high: float
    """Upper end of the difference's one-sided interval."""
    confidence: float

    @property
    def worse(self) -> bool:
        """Whether the tried version is worse, with that confidence."""
        return self.high < 0


def compare(tried: Sequence[ServedPart], others: Sequence[ServedPart], confidence: float) -> CanaryFinding | None:
    """Return what the comparison of the tried version with the others' finds; None where there is too little of either
    to say anything."""
    name = "tokens a round" if _has_stopped(tried, others) else "acceptance"
    left, right = _by_route(tried, MEASURES[name]), _by_route(others, MEASURES[name])
    pairs = [(rate(left[route]), rate(right[route]), _weight(left[route])) for route in left.keys() & right.keys()]
    known = [(t, o, weight) for t, o, weight in pairs if t.variance is not None and o.variance is not None]
    if not (total := sum(weight for *_, weight in known)):
        return None
    after = sum(weight / total * (t.value or 0) for t, _, weight in known)
    before = sum(weight / total * (o.value or 0) for _, o, weight in known)
    width = _width([(side, weight / total) for t, o, weight in known for side in (t, o)], confidence)
    counts = [sum(one.requests for one in side) for side in (tried, others)]
    return CanaryFinding(name, counts[0], counts[1], before, after, after - before + width, confidence)


def _has_stopped(tried: Sequence[ServedPart], others: Sequence[ServedPart]) -> bool:
    """Return whether the tried version is hardly drafted with where the others' is: a controller has given up on it,
    and what is judged of it says little. Then tokens a round tell."""
    shares = [sum(one.judged > 0 for one in side) / max(1, len(side)) for side in (tried, others)]
    return shares[0] < shares[1] / 2


def _by_route(side: Sequence[ServedPart], measure: Measure) -> dict[str, list[Bucket]]:
    routes: dict[str, list[Bucket]] = defaultdict(list)
    for one in side:
        routes[one.route].append(measure(one))
    return routes


def _weight(buckets: Sequence[Bucket]) -> int:
    return sum(below for _, below in buckets)


def _width(sides: Sequence[tuple[Rate, float]], confidence: float) -> float:
    """Student's t by Welch's and Satterthwaite's degrees of freedom, times the standard error."""
    parts = [(weight**2 * side.variance, side.freedom) for side, weight in sides if side.variance]
    if not parts:
        return 0.0
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / free for part, free in parts)
    return student(confidence, freedom) * math.sqrt(variance)


log = logging.getLogger(__name__)

T = TypeVar("T")

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

    def judge_due(self) -> None:
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


class CanaryFollower(Follower[T]):
    """Follows drafts whose new versions one server tries before the others take them."""

    def __init__(self, store: Store, settings: Settings, worker: str) -> None:
        super().__init__(store, settings, worker)
        self._trial = Trial(store, settings.fleet, worker)

    def _wanted(self, name: str) -> DraftVersion | None:
        wanted = self._current(name)
        return self._trial.version(wanted.draft) if wanted and self._trial.on else wanted

    def _tell(self, name: str, wanted: DraftVersion) -> None:
        if not (self._trial.tries(wanted) and self._told.get(name) == wanted.id):  # it stays READY, and is noted once
            super()._tell(name, wanted)

    def _refuse(self, name: str, version: DraftVersion, reason: str) -> None:
        super()._refuse(name, version, reason)
        self._trial.failed(version, reason)
