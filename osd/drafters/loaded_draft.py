"""One set of draft weights in memory: its cache, the rows that it drafts for, and the drafts that share it."""

from __future__ import annotations

from typing import Any, cast

import torch

from osd.draft import Draft
from osd.drafters.causal import CausalDrafter
from osd.drafters.feature_drafter import FeatureDrafter
from osd.gamma.base import CostModel
from osd.models.acceptance_head import HeadPass, heads_of
from osd.models.decoder import Decoder
from osd.models.features.decoder import FeatureDecoder
from osd.models.lora.adapter import Adapter
from osd.models.lora.bank import AdapterRows
from osd.sequence import SequenceState


class DraftModel:
    """A draft's weights and cache. Row i of ``rows`` is row i of the cache, whatever its number in the batch.

    The cache grows with the most rows at one time: to 1, 2, 4 … rows of the engine's length, each of
    2 · layers · key-value heads · head width elements a position.
    """

    def __init__(
        self, decoder: Decoder, vocabulary: int, *, name: str | None, base: str | None, weight_bytes: int, limit: int
    ) -> None:
        """Wrap a decoder. ``name``: under which its costs are kept, None for the engine's first. ``base``: digest of
        these weights, by which drafts and adapters share them; None where none could. ``limit``: positions it knows."""
        self.drafter = CausalDrafter(decoder, vocabulary)
        self.name, self.base, self.weight_bytes, self.limit = name, base, weight_bytes, limit
        self.owns_weights = False
        """Whether nobody else has the weights, so that others may be copied over them."""
        self.rows: list[SequenceState] = []
        self.newest: Draft | None = None
        """What it proposed in the current round; None when it proposed nothing."""
        self._bank = AdapterRows()

    @property
    def decoder(self) -> Decoder:
        """Its forward pass, over its own cache."""
        return self.drafter.decoder

    @property
    def device(self) -> torch.device:
        """The device it computes on."""
        return self.decoder.device

    @property
    def cache_bytes(self) -> int:
        """Memory of the cache, and of what passes over several adapters need, in bytes."""
        return self.decoder.cache.bytes + self._bank.bytes

    def costs(self, whole: CostModel) -> CostModel:
        """Return the part of ``whole``, the engine's cost model, that is about this draft."""
        return whole if self.name is None else whole.of(self.name)

    def exchange(self, decoder: Decoder, *, owned: bool) -> None:
        """Take another decoder's weights, which are nobody else's if ``owned``; what is cached is only stale. Where
        graphs were captured over weights of its own, the new ones are copied over those."""
        own, its = self.decoder.forward.compiled, decoder.forward.compiled
        if self.owns_weights and own and own.adopt(its):
            decoder.forward.compiled = None  # it refers to the pass that it belongs to, which would keep the weights
        else:
            self.decoder.forward, self.owns_weights = decoder.forward, owned
        self.decoder.shared = decoder.shared

    def join(self, row: SequenceState) -> None:
        """Add a row that is new to it."""
        self.decoder.cache.grow(len(self.rows) + 1)
        self.rows.append(row)
        self.regroup()

    def leave(self, row: SequenceState) -> None:
        """Remove a row; the last one takes its place."""
        index, moved = self.rows.index(row), self.rows.pop()
        if moved is not row:
            self.drafter.move_row(len(self.rows), index, moved)
            self.rows[index] = moved
        else:
            self.decoder.release_row(index)
        self.regroup()

    def prepare(self) -> bool:
        """Let its pass make something ready, between two steps; return whether it did."""
        return self.decoder.prepare()

    def regroup(self) -> None:
        """Rows, or their adapters or heads, have changed."""
        seats = [seat_of(row) for row in self.rows]
        used = self._bank.set_rows([seat.adapter for seat in seats])
        self.decoder.adapters = self._bank.mix if used else None
        self.drafter.head = heads_of([seat.head for seat in seats])


class FeatureDraftModel(DraftModel):
    """A feature draft's weights and cache: it reads the hidden states that the target's passes leave in its cache."""

    def __init__(
        self, decoder: FeatureDecoder, vocabulary: int, *, name: str | None, base: str | None, weight_bytes: int,
        limit: int,
    ) -> None:  # fmt: skip
        """Wrap a decoder; arguments as of :class:`DraftModel`."""
        self.drafter: FeatureDrafter = FeatureDrafter(decoder, vocabulary)
        self.name, self.base, self.weight_bytes, self.limit = name, base, weight_bytes, limit
        self.owns_weights = True
        self.rows = []
        self.newest = None

    @property
    def cache_bytes(self) -> int:
        """Memory of its cache, in bytes."""
        return self.decoder.cache.bytes

    def exchange(self, decoder: Decoder, *, owned: bool) -> None:
        """Take another draft's weights; see :meth:`DraftModel.exchange`. :func:`exchanges` has said that it can."""
        self.drafter.features.adopt(cast(FeatureDecoder, decoder))

    def regroup(self) -> None:
        """Do nothing: it has no adapters, and no acceptance head."""


def model_of(decoder: Decoder | FeatureDecoder, vocabulary: int, **facts: Any) -> DraftModel:
    """Return the draft model of a decoder; ``facts``: arguments of :class:`DraftModel`."""
    kind: Any = FeatureDraftModel if isinstance(decoder, FeatureDecoder) else DraftModel
    made: DraftModel = kind(decoder, vocabulary, **facts)
    return made


def exchanges(body: DraftModel, decoder: Decoder | FeatureDecoder) -> bool:
    """Return whether a draft model may take a decoder's weights in the place of its own: drafts of one kind, which read
    the same of the target."""
    own = body.drafter.features if isinstance(body, FeatureDraftModel) else None
    if own is None or not isinstance(decoder, FeatureDecoder):
        return own is None and not isinstance(decoder, FeatureDecoder)
    return own.alike(decoder)


class LoadedDraft:
    """A draft that is in memory: its version, weights and adapter. Rows keep theirs until they end."""

    def __init__(self, draft: str, version: str, body: DraftModel, adapter: Adapter | None = None) -> None:
        self.draft, self.version, self.body, self.adapter = draft, version, body, adapter
        self.head: HeadPass | None = None
        """Its acceptance head, once it has one."""
        self.rows = 0
        """Number of rows that it serves."""
        self.used = 0
        """When it last served, by the pool's own count."""

    @property
    def limit(self) -> int:
        """Positions that it can draft at."""
        return self.body.limit


def seat_of(row: SequenceState) -> LoadedDraft:
    """Return the draft that serves a row, which the pool gave it."""
    return cast(LoadedDraft, row.loaded)
