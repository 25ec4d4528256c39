"""Polls the store in a thread and loads newer versions of what a server uses.

It looks up the version of each draft or head that should serve, checks its digest and loads it aside; the engine
takes it between two steps by exchanging references. What is damaged, does not fit or does not run is quarantined, and
the version before goes on serving. A rollback goes the same way: the store's current version becomes an older one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Generic, TypeVar

from osd.models.sanity_check import NO_MEMORY
from storage.errors import OsdError, PairError, StoreError, WeightsDamaged
from storage.records import DraftVersion, VersionState
from storage.settings import Settings
from storage.store import Store
from storage.versions.promotion import SOUND

log = logging.getLogger(__name__)

T = TypeVar("T")


class Follower(Generic[T]):
    """Follows the current versions of several names for an engine. Close it to stop polling.

    ``begin`` loads what the first look finds, tells the store what serves here, and starts the thread.
    """

    def __init__(self, store: Store, settings: Settings, worker: str) -> None:
        self.store, self.worker = store, worker
        self.serving: dict[str, DraftVersion] = {}
        """The version that the engine uses, by name. Changed by the engine's thread."""
        self.troubles: dict[str, str] = {}
        """Why the newest version was refused, by name, until another one is loaded."""
        self._every = settings.serve.swap_poll_seconds
        self._ready: dict[str, tuple[DraftVersion, T]] = {}
        self._refused: set[str] = set()
        self._told: dict[str, str] = {}
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="osd-swap", daemon=True)

    def names(self) -> Sequence[str]:
        """Return the names that are followed now."""
        raise NotImplementedError

    def load(self, version: DraftVersion) -> T:
        """Load a version whose files are sound, as the engine takes it. Raises WeightsDamaged, PairError."""
        raise NotImplementedError

    def begin(self) -> None:
        """Look once in the caller's thread, then start the polling thread."""
        for name in self.names():
            if wanted := self._wanted(name):
                self._fetch_first(name, wanted)
                if loaded := self._loaded(name):
                    self.serving[name] = loaded  # the engine takes it before it drafts anything
                self._tell(name, wanted)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether a newer version waits to be taken."""
        return bool(self._ready)

    def take_loaded(self) -> list[T]:
        """Return what waits; from now on these versions serve."""
        taken = []
        for name in list(self._ready):
            self.serving[name], loaded = self._ready.pop(name)
            taken.append(loaded)
        return taken

    def close(self) -> None:
        """Stop polling, after telling the store of a version that was taken since the last look."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        try:
            for name in self.names():
                if wanted := self._current(name):
                    self._tell(name, wanted)
            self.store.versions.end_serving(self.worker)
        except OsdError as error:
            log.warning("the store was not told of the end: %s", error, extra={"action": "swap_close_failed"})

    def _work(self) -> None:
        while not self._closing:
            self._wake.wait(self._every)
            self._wake.clear()
            if not self._closing:
                self._try_poll()

    def _try_poll(self) -> None:
        try:
            self._poll()
        except OsdError as error:
            log.warning("no look at draft versions: %s", error, extra={"action": "swap_look_failed"})

    def _poll(self) -> None:
        for name in self.names():
            if wanted := self._wanted(name):
                self._tell(name, wanted)
                self._fetch(name, wanted)
        self._tell_gone()

    def _wanted(self, name: str) -> DraftVersion | None:
        """Return the version that should serve here."""
        return self._current(name)

    def _current(self, name: str) -> DraftVersion | None:
        return self.store.versions.find(name)

    def _tell(self, name: str, wanted: DraftVersion) -> None:
        """Note in the store what serves here: when it changed, and when it became current a second time, which it
        may without a change here if another server had gone on to a version that was then rolled back."""
        serving = self.serving.get(name)  # the engine's thread may exchange it meanwhile
        if serving is None:
            return
        came_back = wanted.id == serving.id and wanted.state is VersionState.READY
        if serving.id != self._told.get(name) or came_back:
            self.store.versions.mark_serving(serving.id, self.worker)
            self._told[name] = serving.id

    def _tell_gone(self) -> None:
        """Tell the store of names that no longer serve here."""
        for name in [name for name in self._told if name not in self.serving]:
            self.store.versions.end_serving(self.worker, self.store.versions.get(self._told[name]).draft)
            del self._told[name]

    def _fetch(self, name: str, wanted: DraftVersion) -> None:
        loaded = self._loaded(name)
        if (loaded is None or wanted.id != loaded.id) and wanted.id not in self._refused:
            self._load(name, wanted)

    def _fetch_first(self, name: str, wanted: DraftVersion) -> None:
        """Load a name's first version; where that is refused, the nearest sound one before it."""
        self._fetch(name, wanted)
        for before in self.store.versions.lineage(wanted.id)[1:] if wanted.id in self._refused else []:
            if self._serves(before):
                self._fetch(name, before)
                if before.id not in self._refused:
                    return

    def _serves(self, before: DraftVersion) -> bool:
        """Return whether a version before the refused one may take its place."""
        return before.state in SOUND and before.deleted_at is None

    def _loaded(self, name: str) -> DraftVersion | None:
        """Return the version that waits, or else the one that serves."""
        waiting = self._ready.get(name)  # read once: the engine's thread may take it meanwhile
        return waiting[0] if waiting else self.serving.get(name)

    def _load(self, name: str, wanted: DraftVersion) -> None:
        try:
            self.store.versions.verify(wanted)
            self._ready[name] = (wanted, self.load(wanted))
            self.troubles.pop(name, None)
        except (WeightsDamaged, PairError) as error:
            log.error("%s", error, extra={"action": "swap_refused", "version": wanted.id})
            self._refuse(name, wanted, str(error))
            self._quarantine(wanted, str(error))
        except OsdError:
            raise  # the store does not answer: another look may help
        except Exception as error:  # whatever fails in a model not ours: the other drafts are to be followed still
            log.exception("%s could not be loaded", wanted.id, extra={"action": "swap_refused", "version": wanted.id})
            reason = f"{wanted.id} could not be loaded ({type(error).__name__}: {error})"
            self._refuse(name, wanted, reason)
            if not isinstance(error, NO_MEMORY):
                self._quarantine(wanted, reason)

    def _refuse(self, name: str, version: DraftVersion, reason: str) -> None:
        """Refuse a version for good; the one that serves goes on serving."""
        self._refused.add(version.id)
        self.troubles[name] = reason

    def _quarantine(self, version: DraftVersion, reason: str) -> None:
        try:
            self.store.versions.quarantine(version.id, reason)
        except StoreError as error:
            log.warning("%s", error, extra={"action": "quarantine_failed"})
