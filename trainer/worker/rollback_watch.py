"""The watch: compares a published version with its parent on live traffic, and rolls back by itself when it is worse.

Live acceptance falls for two reasons: the new version is worse, or the traffic became harder. Only the first is a
reason to go back, so the newest requests are scored again with both versions. The target's answers do not depend
on the draft, so every request that came after a publication can judge it, whichever version served it.

A look compares the version that serves now with the parent of the version that was published at least
``gate.watch_requests`` requests ago: its own parent when publications are rare, an older one when they follow
each other quickly. A version that goes on serving is looked at again each time its requests have doubled; look j
is taken at level (1 − watch_confidence) / 2^(j+1), so all looks together take back a version that is no worse
with probability 1 − watch_confidence at most.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial

from storage.names import draft_of
from storage.records import DraftVersion, VersionState
from storage.settings import Settings
from storage.store import Store
from trainer.devices import training_device
from trainer.distil.checkpoints import load_current, positions_of, vocab_size
from trainer.distil.data import Readable
from trainer.distil.gate import Comparison, comparable, compare
from trainer.distil.scores import score
from trainer.distil.teachers import Teachers

log = logging.getLogger("osd.trainer")

SOUND = (VersionState.READY, VersionState.SERVING, VersionState.RETIRED)
MOST = 8
"""A look scores at most the newest MOST × watch_requests requests."""


@dataclass(slots=True)
class RollbackWatch:
    """The watch over one draft. Its memory only saves looks: after a restart the newest is repeated."""

    store: Store
    settings: Settings
    draft: str
    teachers: Teachers = field(default_factory=Teachers)
    """The targets that this process's runs learn from."""
    looks: int = 0
    """Number of looks taken at ``watched``."""
    watched: str | None = None
    """The version that served at the newest look."""
    newest: Comparison | None = None
    """The newest look's result: the parent's gain over the version that served."""

    def compare_if_due(self) -> DraftVersion | None:
        """Compare if enough requests have come, and roll back if the parent is significantly better.

        Returns the version that serves then; None when nothing changed, and while people hold the draft. Raises
        StoreError.
        """
        current = self.store.versions.current(self.draft)
        if self.draft in self.store.decisions.holds():
            return None
        pair = self._due(current)
        if pair is None:
            return None
        parent, requests = pair
        self.looks = self.looks + 1 if self.watched == current.id else 1
        self.watched = current.id
        result = self._compare(current, parent, requests)
        self.newest = result
        if result.lower <= 0:
            return None
        reason = _reason(result, parent)
        log.warning("%s is taken back: %s", current.id, reason, extra={"action": "rolled_back", "version": current.id})
        return self.store.versions.rollback(self.draft, reason, to=parent.id, of=current.id)

    def _due(self, current: DraftVersion) -> tuple[DraftVersion, list[str]] | None:
        """Return the version to compare with and the requests to compare on; None when no look is due."""
        least = self.settings.gate.watch_requests
        if self.watched == current.id:
            least *= 2**self.looks
        elif self.watched is not None and len(self._since(self.store.versions.get(self.watched))) < least:
            return None  # publications follow each other: one look for so many requests is enough
        child = current
        while len(requests := self._since(child)) < least:
            if child.parent is None or self.watched == current.id:
                return None
            child = self.store.versions.get(child.parent)
        if child.parent is None:
            return None
        parent = self.store.versions.get(child.parent)
        return (parent, requests) if parent.state in SOUND and parent.deleted_at is None else None

    def _since(self, version: DraftVersion) -> list[str]:
        """Return the newest requests that came after the version was created, newest first."""
        limit = MOST * self.settings.gate.watch_requests
        # a draft that serves no route is judged on those that it might serve
        recent = partial(self.store.samples.recent, self.draft, limit=limit, candidate=not self._serves())
        older = set(recent(before=version.created_at))
        return [request for request in recent() if request not in older]

    def _serves(self) -> bool:
        return any(route.draft == draft_of(self.draft) for route in self.store.routes.list())

    def _compare(self, current: DraftVersion, parent: DraftVersion, requests: list[str]) -> Comparison:
        device = training_device(self.settings.trainer)
        lessons = self.teachers.lessons(self.store, self.settings, current, device)
        shared = None if lessons is None else lessons.teacher.shared
        now, then = (load_current(self.store, version, device, shared) for version in (current, parent))
        readable = Readable(vocab_size(now), positions_of(now), lessons)
        measure, judges = comparable(readable.among(self.store.samples.read(requests)), lessons)
        after, before = (score(draft, judges, lessons=lessons) for draft in (now, then))
        level = (1 - self.settings.gate.watch_confidence) / 2**self.looks
        return compare(after.positions, after.of(measure), before.of(measure), 1 - level)


def _reason(result: Comparison, parent: DraftVersion) -> str:
    return (
        f"on the newest {result.requests} requests its expected acceptance is {result.before:.3f}, that of {parent.id} "
        f"{result.after:.3f}: better by at least {result.lower:.3f} with confidence {result.confidence:.5f}"
    )
