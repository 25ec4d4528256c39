"""Which drafts are in memory: they come, are exchanged for newer versions, and leave, between two steps.

The default draft never leaves. Beyond the budget the least recently used one leaves first, and only one that no
row uses. Rows keep the draft that they have: one that is unloaded serves them to their end, and its memory is
free when the last of them has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, cast

import torch

from osd.drafters.causal import CausalDrafter
from osd.drafters.feature_drafter import FeatureDrafter, FeatureDraftModel
from osd.drafters.loaded_draft import DraftModel, LoadedDraft, loaded_draft_of
from osd.drafters.pool import DraftPool
from osd.models.decoder import Decoder
from osd.models.features.decoder import FeatureDecoder
from osd.models.lora.adapter import Adapter
from osd.models.needs_draft import NeedsDraft
from osd.sequence import SequenceState
from storage.settings import ServeSettings


@dataclass(frozen=True, slots=True, eq=False)
class LoadedVersion:
    """A draft version that was loaded aside."""

    draft: str
    version: str
    limit: int
    """Positions that it knows."""
    base: str | None = None
    """Digest of the full weights that serve it, bare or under ``adapter``; None for a merged adapter."""
    decoder: Decoder | FeatureDecoder | None = None
    """The weights; None where those of ``base`` were in memory already."""
    weight_bytes: int = 0
    adapter: Adapter | None = None
    owned: bool = False
    """Whether nobody else has the decoder's weights."""

    @property
    def bytes(self) -> int:
        """Memory of what was loaded, in bytes."""
        return self.weight_bytes + (self.adapter.bytes if self.adapter else 0)


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """Memory of one draft, in bytes."""

    kind: str
    """The version's: full, lora, or a kind of feature draft."""
    version: str
    weight_bytes: int
    """Weights of its own: an adapter's factors, or whole weights."""
    cache_bytes: int
    """Keys and values of its own; an adapter's rows use its base's."""
    shared_bytes: int
    """Weights and cache of the base that it shares with others; 0 where it shares nothing."""


LetIn = Literal["taken", "later", "never"]


class DraftResidency:
    """Loads drafts into a pool and unloads them. ``budget``: bytes for all drafts and their caches; None for no
    limit."""

    def __init__(self, pool: DraftPool, budget: int | None = None) -> None:
        self.pool, self.budget = pool, budget

    def let_in(self, arrival: LoadedVersion) -> LetIn:
        """Let a version in. Returns ``later`` where there is no room while others serve, or its base has left;
        ``never`` where it does not fit beside the default draft."""
        loaded, there = self.pool.loaded_drafts.get(arrival.draft), self._body_over(arrival.base)
        if loaded and there is loaded.body:
            self._replace(loaded, arrival, there)
        elif loaded and there is None and arrival.decoder and self._may_take(loaded, arrival.decoder):
            self._exchange(loaded, arrival, arrival.decoder)
        elif there is None and arrival.decoder is None:
            return "later"
        else:
            return self._add_draft(arrival, there or self._new_body(arrival))
        return "taken"

    def unload(self, draft: str) -> bool:
        """Take a draft from new rows; return False for the default draft and for one that is not here."""
        if draft == self.pool.default.draft or draft not in self.pool.loaded_drafts:
            return False
        del self.pool.loaded_drafts[draft]
        return True

    def bytes(self) -> int:
        """Return the memory of all drafts: those that new rows may get, and those that rows still use."""
        return self._bytes(self._kept())

    def memory(self) -> dict[str, DraftMemory]:
        """Return the memory that each draft takes, by its name."""
        return {name: self._memory_of(loaded) for name, loaded in self.pool.loaded_drafts.items()}

    def _memory_of(self, loaded: LoadedDraft) -> DraftMemory:
        body = loaded.body
        if loaded.adapter:
            shared = body.weight_bytes + body.cache_bytes
            return DraftMemory("lora", loaded.version, loaded.adapter.bytes, 0, shared)
        return DraftMemory(body.kind, loaded.version, body.weight_bytes, body.cache_bytes, 0)

    def _replace(self, loaded: LoadedDraft, arrival: LoadedVersion, body: DraftModel) -> None:
        """Set another adapter over the same base, or none."""
        loaded.version, loaded.adapter = arrival.version, arrival.adapter
        body.regroup()

    def _exchange(self, loaded: LoadedDraft, arrival: LoadedVersion, decoder: Decoder | FeatureDecoder) -> None:
        """Set other weights in the same draft model."""
        body = loaded.body
        body.exchange(cast(Decoder, decoder), owned=arrival.owned)
        body.base, body.weight_bytes, body.limit = arrival.base, arrival.weight_bytes, arrival.limit
        self._replace(loaded, arrival, body)

    def _add_draft(self, arrival: LoadedVersion, body: DraftModel) -> LetIn:
        """Add a draft, where there is room for one. Rows of the version before keep theirs."""
        head = self.pool.heads.get(arrival.draft)
        loaded = LoadedDraft(arrival.draft, arrival.version, body, arrival.adapter, head)
        if arrival.draft == self.pool.default.draft:
            self.pool.default = loaded
        elif self.budget is not None and self._bytes([self.pool.default, loaded]) > self.budget:
            return "never"
        elif not self._make_room(loaded):
            return "later"
        self.pool.loaded_drafts[arrival.draft] = loaded
        return "taken"

    def _new_body(self, arrival: LoadedVersion) -> DraftModel:
        assert arrival.decoder is not None
        taken = {loaded.body.name for loaded in self._kept()}
        name = next(n for i in count() if (n := arrival.draft + f" {i}" * (i > 0)) not in taken)  # an old one may last
        body = model_of(
            arrival.decoder, self.pool.vocabulary, name=name, base=arrival.base, weight_bytes=arrival.weight_bytes,
            limit=arrival.limit,
        )  # fmt: skip
        body.owns_weights = arrival.owned
        self.pool.connect(body)
        return body

    def _body_over(self, base: str | None) -> DraftModel | None:
        """Return the draft model that has these weights."""
        found = (
            loaded.body for loaded in self.pool.loaded_drafts.values() if base is not None and loaded.body.base == base
        )
        return next(found, None)

    def _may_take(self, loaded: LoadedDraft, decoder: Decoder | FeatureDecoder) -> bool:
        """Return whether a draft's own model may take these weights: no other draft uses it."""
        loaded_drafts = [*self.pool.loaded_drafts.values(), *(loaded_draft_of(row) for row in loaded.body.rows)]
        alone = all(other is loaded for other in loaded_drafts if other.body is loaded.body)
        return alone and loaded.body.may_take(decoder)

    def _make_room(self, loaded: LoadedDraft) -> bool:
        """Evict idle drafts until it fits, the least recently used first; return whether it does."""
        known = [s for s in self.pool.loaded_drafts.values() if s.draft != loaded.draft]
        idle = sorted((s for s in known if not s.rows and s is not self.pool.default), key=lambda s: s.used)
        while self.budget is not None and self._bytes([*self._kept(), loaded]) > self.budget:
            if not idle:
                return False
            del self.pool.loaded_drafts[idle.pop(0).draft]
        return True

    def _kept(self) -> list[LoadedDraft]:
        """Return the loaded drafts that new rows may get, and those that rows still use."""
        rows = (row for body in self.pool.busy for row in body.rows)
        return [*self.pool.loaded_drafts.values(), *map(loaded_draft_of, rows)]

    def _bytes(self, loaded_drafts: Iterable[LoadedDraft]) -> int:
        kept: Sequence[LoadedDraft] = list(loaded_drafts)
        bodies = {id(loaded.body): loaded.body for loaded in kept}.values()
        adapters = {id(loaded.adapter): loaded.adapter for loaded in kept if loaded.adapter}.values()
        return sum(b.weight_bytes + b.cache_bytes for b in bodies) + sum(adapter.bytes for adapter in adapters)


def model_of(decoder: Decoder | FeatureDecoder, vocabulary: int, **facts: Any) -> DraftModel:
    """Return the draft model of a decoder; ``facts``: arguments of :class:`DraftModel`."""
    if isinstance(decoder, FeatureDecoder):
        return FeatureDraftModel(FeatureDrafter(decoder, vocabulary), **facts | {"owned": True})
    return DraftModel(CausalDrafter(decoder, vocabulary), **facts)


class NullDraftModel(DraftModel):
    """Stands in where there is no draft model: it takes rows, drafts nothing, and has no weights and no cache."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(cast(CausalDrafter, NullDrafter()))
        self._device = device

    @property
    def decoder(self) -> Decoder:
        """No decoder: raises NeedsDraft."""
        raise NeedsDraft(what="This")

    @property
    def device(self) -> torch.device:
        """The target's device."""
        return self._device

    @property
    def cache_bytes(self) -> int:
        """Memory of its cache: 0."""
        return 0

    def configure(self, serve: ServeSettings, *, keeps_prefixes: bool) -> None:
        """Do nothing: there is no pass."""

    def join(self, row: SequenceState) -> None:
        """Take a row in."""
        self.rows.append(row)

    def leave(self, row: SequenceState) -> None:
        """Let a row go."""
        self.rows.remove(row)

    def prepare(self) -> bool:
        """Prepare nothing."""
        return False

    def regroup(self) -> None:
        """Do nothing: nothing depends on which rows there are."""


class NullDrafter:
    """What a draft model's drafter is asked without drafting."""

    head: Any = None
