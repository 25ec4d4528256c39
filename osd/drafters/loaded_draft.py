"""One set of draft weights in memory: its cache, the rows that it drafts for, and the drafts that share it."""

from __future__ import annotations

from typing import cast

import torch

from osd.draft import Draft
from osd.drafters.base import DraftRequest
from osd.drafters.causal import CausalDrafter
from osd.gamma.base import CostModel
from osd.models.acceptance_head import HeadPass, heads_of
from osd.models.decoder import Decoder
from osd.models.features.decoder import FeatureDecoder
from osd.models.lora.adapter import Adapter
from osd.models.lora.bank import AdapterRows
from osd.models.target_only import EVERYWHERE
from osd.sequence import SequenceState
from storage.settings import ServeSettings


class DraftModel:
    """A draft's weights and cache. Row i of ``rows`` is row i of the cache, whatever its number in the batch.

    The cache grows with the most rows at one time: to 1, 2, 4 … rows of the engine's length, each of
    2 · layers · key-value heads · head width elements a position.
    """

    kind = "full"
    """What its weights are: full, or a kind of feature draft."""

    def __init__(
        self, drafter: CausalDrafter, *, name: str | None = None, base: str | None = None, weight_bytes: int = 0,
        limit: int = EVERYWHERE, owned: bool = False,
    ) -> None:  # fmt: skip
        """Wrap a drafter. ``name``: under which its costs are kept, None for the engine's first. ``base``: digest of
        these weights, by which drafts and adapters share them; None where none could. ``limit``: positions it knows.
        ``owned``: whether nobody else has the weights, so that others may be copied over them."""
        self.drafter = drafter
        self.name, self.base, self.weight_bytes, self.limit = name, base, weight_bytes, limit
        self.owns_weights = owned
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

    def may_take(self, decoder: Decoder | FeatureDecoder) -> bool:
        """Return whether it may take a decoder's weights in the place of its own."""
        return not isinstance(decoder, FeatureDecoder)

    def exchange(self, decoder: Decoder, *, owned: bool) -> None:
        """Take another decoder's weights, which are nobody else's if ``owned``; what is cached is only stale. Where
        graphs were captured over weights of its own, the new ones are copied over those."""
        if not self.decoder.take_weights(decoder, over_own=self.owns_weights):
            self.owns_weights = owned

    def read_target(self, target: Decoder) -> None:
        """Do nothing: it reads the text alone."""

    def configure(self, serve: ServeSettings, *, keeps_prefixes: bool) -> None:
        """Keep a cache of prompts' prefixes, where the settings give it memory."""
        if keeps_prefixes:
            self.drafter.keep_prefixes(serve)

    def propose(self, request: DraftRequest, costs: CostModel, device: torch.device) -> Draft:
        """Draft for its rows; what is proposed comes to ``device``. ``costs``: the engine's cost model."""
        own, most = self.costs(costs), request.most_read
        unread = [row.unread() for row, gamma in zip(request.rows, request.gammas, strict=True) if gamma]
        own.begin_draft(sum(unread if most is None else (min(each, most) for each in unread)))
        self.newest = None
        self.newest = draft = self.drafter.propose(request.on(self.device)).to(device)
        if self.decoder.became_quicker():
            own.forget_drafts()
        if not draft.passes:
            own.begin_draft(0)
        return draft

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
        drafts = [loaded_draft_of(row) for row in self.rows]
        used = self._bank.set_rows([draft.adapter for draft in drafts])
        self.decoder.use_adapters(self._bank.mix if used else None)
        self.drafter.use_heads(heads_of([draft.head for draft in drafts]))


class LoadedDraft:
    """A draft that is in memory: its version, weights and adapter. Rows keep theirs until they end."""

    def __init__(
        self, draft: str, version: str, body: DraftModel, adapter: Adapter | None = None, head: HeadPass | None = None
    ) -> None:
        self.draft, self.version, self.body, self.adapter, self.head = draft, version, body, adapter, head
        self.rows = 0
        """Number of rows that it serves."""
        self.used = 0
        """When it last served, by the pool's own count."""

    @property
    def limit(self) -> int:
        """Positions that it can draft at."""
        return self.body.limit


def loaded_draft_of(row: SequenceState) -> LoadedDraft:
    """Return the draft that serves a row, which the pool gave it."""
    return cast(LoadedDraft, row.loaded)
