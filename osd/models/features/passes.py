"""A feature draft's layers over a ragged cache, fused as a target's are: EAGLE's and P-EAGLE's, and DFlash's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

import torch
from torch import Tensor

from osd.models import llama_forward
from osd.models.features.base import FeatureDraft
from osd.models.features.dflash import DFlashDraft
from osd.models.features.eagle import EagleDraft
from osd.models.features.peagle import PEagleDraft
from osd.models.features.target import Embed
from osd.models.kv_cache import RaggedCache
from osd.models.llama_forward import FusedLayer


class DraftLayers:
    """The layers of a draft that has a cache."""

    def __init__(self, draft: EagleDraft | DFlashDraft) -> None:
        self.layers = [FusedLayer(layer, i) for i, layer in enumerate(draft.layers)]
        self._rotary_module = draft.rotary
        self._cos = self._sin = torch.empty(0)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of layers, heads of their keys, and the width of those."""
        return len(self.layers), self.layers[0].keys, self.layers[0].width

    def read(
        self, cache: RaggedCache, at: DraftColumns, features: Tensor, tokens: Tensor, embed: Embed, ahead: int
    ) -> Tensor:  # fmt: skip
        """Read columns; arguments and result as in :meth:`osd.models.features.decoder.FeatureDecoder.read`."""
        raise NotImplementedError

    def rotary(self, cache: RaggedCache, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rotary tables (B, T, 1, head_dim) at the pass's positions, cosine and sine."""
        if len(self._cos) < cache.length:
            positions = torch.arange(cache.length, device=like.device).unsqueeze(0)
            self._cos, self._sin = llama_forward.rotary_tables(self._rotary_module, like, positions)
        cos, sin = (table[cache.feed.positions].unsqueeze(2) for table in (self._cos, self._sin))
        return cos, sin


class DraftColumns:
    """The columns that a pass reads: ``counts[i]`` of row ``first`` + i, from ``starts[i]`` on."""

    def __init__(self, first: int, starts: Sequence[int], counts: Sequence[int]) -> None:
        self.first, self.starts, self.counts = first, starts, counts

    def aim(self, cache: RaggedCache, width: int, more: int = 0) -> None:
        """Point the next pass at them, ``width`` with padding, and at ``more`` behind each row's."""
        cache.extend(self.first, [end + more for end in self.ends])
        cache.aim(self.first, self.starts, width + more, [count + more for count in self.counts])

    @property
    def ends(self) -> list[int]:
        """(B,) where the columns behind them begin."""
        return list(map(add, self.starts, self.counts))

    def last(self, device: torch.device) -> Tensor:
        """Return where each row's last column stands in the pass, (B,)."""
        return torch.tensor([max(0, count - 1) for count in self.counts], device=device)


class EagleLayers(DraftLayers):
    """EAGLE's layer, or P-EAGLE's layers."""

    def __init__(self, draft: EagleDraft) -> None:
        super().__init__(draft)
        self._draft = draft

    def read(
        self, cache: RaggedCache, at: DraftColumns, features: Tensor, tokens: Tensor, embed: Embed, ahead: int
    ) -> Tensor:  # fmt: skip
        """See :meth:`DraftLayers.read`. P-EAGLE's masked columns are the last of the same pass."""
        last, hidden = at.last(tokens.device), self._draft.begin(features)
        rows = torch.arange(len(last), device=tokens.device).unsqueeze(1)
        if not isinstance(self._draft, PEagleDraft):
            at.aim(cache, tokens.shape[1])
            return self(embed(tokens), hidden, cache)[rows[:, 0], last]
        more = max(0, ahead - 1)
        at.aim(cache, tokens.shape[1], more)
        mask, mask_hidden = self._draft.masked(embed)
        known = (torch.arange(tokens.shape[1] + more, device=tokens.device) <= last.unsqueeze(1)).unsqueeze(2)
        padded = torch.nn.functional.pad
        embedding = torch.where(known, padded(self._draft.embedded(embed)(tokens), (0, 0, 0, more)), mask)
        hidden = self(embedding, torch.where(known, padded(hidden, (0, 0, 0, more)), mask_hidden), cache)
        return hidden[rows, last.unsqueeze(1) + torch.arange(ahead, device=rows.device)].flatten(1)

    def __call__(self, embedding: Tensor, hidden: Tensor, cache: RaggedCache) -> Tensor:
        """Compute the next features (B, T, H) from embeddings and the features before them, (B, T, H) each."""
        cos, sin = self.rotary(cache, hidden)
        embedding = self._draft.shown(embedding.to(hidden.dtype), cache.feed.positions)
        read, residual = self._draft.enter(embedding, hidden)
        first = self.layers[0]
        hidden = residual + first.out(first.look(first.project(read, 0, cache, cos, sin), 0, cache))
        hidden = hidden + first.transform(hidden)
        for index, layer in enumerate(self.layers[1:], 1):
            hidden = hidden + layer.attend(hidden, index, cache, cos, sin)
            hidden = hidden + layer.transform(hidden)
        return self._draft.leave(hidden)


class BlockLayers(DraftLayers):
    """DFlash's layers."""

    def __init__(self, draft: DFlashDraft) -> None:
        super().__init__(draft)
        self._draft = draft

    def read(
        self, cache: RaggedCache, at: DraftColumns, features: Tensor, tokens: Tensor, embed: Embed, ahead: int
    ) -> Tensor:  # fmt: skip
        """See :meth:`DraftLayers.read`. The text's keys and values are written first; a block is whole, of whatever
        length the draft is."""
        context = self._draft.context(features)
        at.aim(cache, tokens.shape[1])
        cos, sin = self.rotary(cache, context)
        for index, layer in enumerate(self.layers):
            layer.project(context, index, cache, cos, sin)
        if not ahead:
            return context[:, 0, :0]
        anchors = tokens.gather(1, at.last(tokens.device).unsqueeze(1))[:, 0]
        return self._fill(cache, at.ends, self._draft.block(anchors, embed))[:, 1 : ahead + 1].flatten(1)

    def _fill(self, cache: RaggedCache, starts: Sequence[int], hidden: Tensor) -> Tensor:
        """Compute blocks, (B, K + 1, H), that stand in the first B rows from ``starts`` on."""
        size, looked_back = hidden.shape[1], None
        cache.extend(0, [start + size for start in starts])
        depths = torch.arange(size, device=hidden.device).expand(len(starts), -1)
        every = torch.ones(len(starts), size, size, dtype=torch.bool, device=hidden.device)
        for index, (layer, looks_back) in enumerate(zip(self.layers, self._draft.looks_back, strict=True)):
            if looks_back != looked_back:
                cache.aim_tree(starts, depths, every.tril() if looks_back else every, [size] * len(starts), None)
                (cos, sin), looked_back = self.rotary(cache, hidden), looks_back
            hidden = hidden + layer.attend(hidden, index, cache, cos, sin)
            hidden = hidden + layer.transform(hidden)
        return hidden


def draft_layers(draft: FeatureDraft) -> DraftLayers | None:
    """Return a draft's layers; None for one that has no cache (Medusa)."""
    if isinstance(draft, DFlashDraft):
        return BlockLayers(draft)
    return EagleLayers(draft) if isinstance(draft, EagleDraft) else None
