"""The acceptance heads that a running engine asks: their newer versions are followed as drafts are followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from osd.hotswap.follower import Follower
from osd.models.acceptance_head import HeadPass, load_head, require_fit, require_lineage
from osd.models.pair import Pair
from storage.errors import HeadNotLoaded, WeightsDamaged
from storage.names import draft_of, draft_of_head, head_of
from storage.records import DraftVersion
from storage.settings import Settings
from storage.store import Store

LoadedHead = tuple[str, HeadPass]
"""A draft, and its head as the draft loop calls it."""


class HeadSwap(Follower[LoadedHead]):
    """Follows the heads that the gamma rule asks, one a draft. One may appear later: until then there is none."""

    def __init__(
        self, store: Store, draft: str, pair: Pair, settings: Settings, worker: str,
        others: Callable[[], Iterable[str]] = tuple,
    ) -> None:  # fmt: skip
        """The draft is registered. ``gamma.specdecpp.head`` is its head's version 0, registered if it is new.
        ``others`` returns the drafts that are in memory beside it.

        Raises HeadNotLoaded or HeadMismatch for that one, StoreError if the draft's head started from another.
        """
        super().__init__(store, settings, f"{worker} head")
        current = store.versions.current(draft, pair.target.digest)
        self.model, self.root = pair.draft, store.versions.lineage(current.id)[-1]
        self.name, folder = head_of(current.draft), settings.gamma.specdecpp.head
        self._draft, self._others, self._target = draft, others, pair.target.digest
        self._given = folder is not None
        if folder is not None:
            require_fit(load_head(folder), folder, self.model, self.root.digest)
            store.versions.register_root(self.name, folder, target=pair.target.digest)
        self.begin()

    def names(self) -> Sequence[str]:
        """Return the names of the heads of all drafts in memory, that of the first before the others."""
        found = [self.store.versions.find(draft, self._target) for draft in self._others() if draft != self._draft]
        return [self.name, *(head_of(version.draft) for version in found if version)]

    def leave(self, draft: str) -> None:
        """Stop following the head of a draft that has left memory."""
        for name in [name for name in self.serving if name != self.name and _draft(name) == draft]:
            del self.serving[name]

    def _serves(self, before: DraftVersion) -> bool:
        """Return whether a version may serve: an untrained head predicts nothing, unless the settings named it."""
        given = self._given and before.draft == self.name
        return super()._serves(before) and (before.parent is not None or given)

    def load(self, version: DraftVersion) -> LoadedHead:
        """Load the head as the draft loop calls it. Raises WeightsDamaged, HeadMismatch."""
        try:
            head = load_head(self.store.versions.folder(version))
        except HeadNotLoaded as error:
            raise WeightsDamaged(version=version.id, reason=error.facts["reason"]) from None
        if version.draft == self.name:
            require_fit(head, version.id, self.model, self.root.digest)
        else:
            line = draft_of_head(version.draft)
            root = self.store.versions.lineage(self.store.versions.current(line).id)[-1]
            require_lineage(head, version.id, line, root.digest)
        return _draft(version.draft), HeadPass(head, self.model.device)


def _draft(name: str) -> str:
    """Return the draft whose head has this name."""
    return draft_of(draft_of_head(name))
