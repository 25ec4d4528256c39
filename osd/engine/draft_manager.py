"""The drafts of one engine and what comes and goes between two steps: the pool, its residency, and the swap."""

from __future__ import annotations

from osd.drafters.factory import require_drafter
from osd.drafters.loaded_draft import LoadedDraft
from osd.drafters.pool import DraftPool
from osd.drafters.residency import DraftMemory, DraftResidency, LoadedVersion, NullDraftModel, model_of
from osd.gamma.base import CostModel
from osd.hotswap.drafts import Swap
from osd.hotswap.heads import HeadSwap
from osd.hotswap.loader import weight_bytes
from osd.models.acceptance_head import head_in_settings
from osd.models.pair import Pair, row_length
from osd.models.target_only import has_draft
from storage.records import DEFAULT_DRAFT
from storage.settings import Settings

UNVERSIONED = "unversioned"
"""The draft version of an engine that has no store."""


class DraftManager:
    """Manages the drafts of one engine: lets newer versions in and others go. Used by the engine's thread."""

    def __init__(
        self, pair: Pair, settings: Settings, swap: Swap | None, heads: HeadSwap | None, costs: CostModel
    ) -> None:
        """``costs``: what is known of what passes take.

        Raises HeadNotLoaded and HeadMismatch for ``gamma.specdecpp.head``, where ``heads`` does not bring another, and
        NeedsDraft.
        """
        require_drafter(pair, settings)
        self.swap, self.heads = swap, heads
        self.pool = DraftPool(_first_draft(pair, settings, swap), pair.vocab_size, costs, pair.device)
        self.pool.head = None if heads else head_in_settings(settings.gamma, pair.draft)
        memory_mb = settings.serve.draft_memory_mb
        self.residence = DraftResidency(self.pool, memory_mb and memory_mb << 20)
        self._put_off: dict[str, int] = {}
        """Drafts that found no room, each with the count of idled drafts at that time."""
        if self.ready:
            self.renew()

    @property
    def ready(self) -> bool:
        """Whether drafts wait to be let in or removed."""
        return self.swap is not None and bool(self.swap.ready or self.swap.gone)

    def want(self, draft: str) -> None:
        """Load the draft that a request was sent to, unless it is here, or it found no room and nothing has changed."""
        if self.swap and draft not in self.pool.loaded_drafts and self._put_off.get(draft) != self.pool.idled:
            self.swap.want(draft)

    def renew(self) -> None:
        """Exchange references: loaded drafts come in, those that no route names any more go."""
        assert self.swap is not None
        for arrival in self.swap.take_loaded():
            self._let_in(arrival, self.swap)
        while self.swap.gone:
            self._let_go(self.swap.gone.pop(), self.swap)
        for name in [name for name in self.swap.serving if name not in self.pool.loaded_drafts]:
            self.swap.leave(name)
        self.swap.bases = frozenset(loaded.body.base for loaded in self.pool.loaded_drafts.values() if loaded.body.base)

    def _let_in(self, arrival: LoadedVersion, swap: Swap) -> None:
        """Let a loaded draft in, if it is still wanted and there is room."""
        taken = self.residence.let_in(arrival) if arrival.draft in swap.names() else "later"
        if taken != "taken":
            self._put_off[arrival.draft] = self.pool.idled
            self._let_go(arrival.draft, swap, refuse=arrival.version if taken == "never" else None)

    def _let_go(self, draft: str, swap: Swap, refuse: str | None = None) -> None:
        self.residence.unload(draft)
        swap.leave(draft, refuse=refuse)
        if self.heads:
            self.heads.leave(draft)
            self.pool.heads.pop(draft, None)

    def renew_heads(self) -> None:
        """Take newer acceptance heads, if there are any."""
        if self.heads and self.heads.ready:
            for draft, head in self.heads.take_loaded():
                self.pool.set_head(draft, head)

    def memory(self) -> dict[str, DraftMemory]:
        """Return the memory that each draft takes."""
        return self.residence.memory()


def _first_draft(pair: Pair, settings: Settings, swap: Swap | None) -> LoadedDraft:
    """Return the pair's own draft, with a cache for a whole batch; nobody where the pair has none."""
    if not has_draft(pair):
        return LoadedDraft(DEFAULT_DRAFT, UNVERSIONED, NullDraftModel(pair.device))
    body = model_of(
        pair.draft.decoder(settings.serve.max_batch, row_length(pair, settings)), pair.vocab_size, name=None,
        base=swap.root.digest if swap else None, weight_bytes=weight_bytes(pair.draft.module), limit=pair.draft.limit,
    )  # fmt: skip
    return LoadedDraft(swap.draft, swap.root.id, body) if swap else LoadedDraft(DEFAULT_DRAFT, UNVERSIONED, body)
