"""A follower that serves what the trial of a new version asks of it: the current version, or the canary."""

from __future__ import annotations

from typing import TypeVar

from osd.hotswap.canary import Trial
from osd.hotswap.follower import Follower
from storage.records import DraftVersion
from storage.settings import Settings
from storage.store import Store

T = TypeVar("T")


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
