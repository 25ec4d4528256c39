"""The acceptance head that a running engine asks: it follows the head's newer versions as drafts are followed."""

from __future__ import annotations

from collections.abc import Sequence

from osd.hotswap.follower import Follower
from osd.models.acceptance_head import HeadPass, load_head, require_fit
from osd.models.pair import Pair
from storage.errors import HeadNotLoaded, WeightsDamaged
from storage.names import head_of
from storage.records import DraftVersion
from storage.settings import Settings
from storage.store import Store


class HeadSwap(Follower[HeadPass]):
    """Follows the acceptance head that the gamma rule asks. It may appear later: until then there is none."""

    def __init__(self, store: Store, draft: str, pair: Pair, settings: Settings, worker: str) -> None:
        """The draft is registered. ``gamma.specdecpp.head`` is the head's version 0, registered if it is new.

        Raises HeadNotLoaded or HeadMismatch for that one, StoreError if the draft's head started from another.
        """
        super().__init__(store, settings, f"{worker} head")
        current = store.versions.current(draft, pair.target.digest)
        self.model, self.root = pair.draft, store.versions.lineage(current.id)[-1]
        self.name, folder = head_of(current.draft), settings.gamma.specdecpp.head
        self._given = folder is not None
        if folder is not None:
            require_fit(load_head(folder), folder, self.model, self.root.digest)
            store.versions.register_root(self.name, folder, target=pair.target.digest)
        self.begin()

    def names(self) -> Sequence[str]:
        """Return the head's name alone."""
        return [self.name]

    def _serves(self, before: DraftVersion) -> bool:
        """Return whether a version may serve: an untrained head predicts nothing, unless the settings named it."""
        return super()._serves(before) and (before.parent is not None or self._given)

    def load(self, version: DraftVersion) -> HeadPass:
        """Load the head as the draft loop calls it. Raises WeightsDamaged, HeadMismatch."""
        try:
            head = load_head(self.store.versions.folder(version))
        except HeadNotLoaded as error:
            raise WeightsDamaged(version=version.id, reason=error.facts["reason"]) from None
        require_fit(head, version.id, self.model, self.root.digest)
        return HeadPass(head, self.model.device)
