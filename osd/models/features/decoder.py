"""A feature draft as it serves: its passes over the target's hidden states, and over its own, with a cache of its own.

Column c of a row stands for the position whose hidden state was computed when token c + 1 was known. It is read from
that state and that token's embedding, and what comes of it predicts token c + 2. A row of n tokens has the columns
0 … n − 2 from the target; those of drafted tokens come after them, and are overwritten once the target has verified the
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from osd.models import llama_forward
from osd.models.attention_metadata import Layout
from osd.models.decoder import Decoder
from osd.models.features.base import FeatureDraft
from osd.models.features.dflash import DFlashDraft
from osd.models.features.eagle import EagleDraft
from osd.models.features.files import load_feature_draft
from osd.models.features.medusa import MedusaDraft
from osd.models.features.passes import DraftColumns, EagleLayers, draft_layers
from osd.models.features.target import FeatureTarget
from osd.models.kv_cache import RaggedCache
from osd.models.limits import position_limit
from osd.models.model import Model
from osd.models.products import Product, product_of

ROOM = 256
"""Columns beyond a row's own that its drafted branches may take."""


class FeatureDecoder:
    """The passes of one feature draft, over its own cache. Rows are numbered from 0."""

    shared = adapters = None
    """A feature draft has the target's vocabulary, and no adapters over it."""
    drafts = False

    def __init__(self, draft: FeatureDraft, target: FeatureTarget, rows: int, length: int, limit: int) -> None:
        """``length``: positions of a row; ``limit``: positions that the draft knows."""
        weight = target.head.weight
        self.draft, self.target, self.device, self.limit = draft, target, weight.device, limit
        self.layers = draft.feature_layers(target.module)
        """The hidden states of the target that it reads."""
        self._head, self._body = _head(draft, target), draft_layers(draft)
        layers = 1 if self._body is None else len(self._body.layers)
        self.cache = RaggedCache(layers, rows, length + ROOM, weight.device, next(draft.parameters()).dtype, limit)

    def became_quicker(self) -> bool:
        """Return False: its passes are as quick as they were."""
        return False

    @property
    def most(self) -> int:
        """The deepest token that it can draft: Medusa has one head for each, and DFlash a block of them."""
        draft = self.draft
        if isinstance(draft, DFlashDraft):
            return draft.masks
        return draft.heads if isinstance(draft, MedusaDraft) else min(ROOM, self.limit)

    @property
    def runs_on(self) -> bool:
        """Whether it runs on its own features."""
        return self.reads and not self.draft.at_once

    @property
    def reads(self) -> bool:
        """Whether it has read a row's columns before its last one."""
        return self._body is not None

    @property
    def cache_dtype(self) -> torch.dtype:
        """The type of number of its features."""
        return next(self.draft.parameters()).dtype

    def prepare(self) -> bool:
        """Prepare nothing."""
        return False

    def adopt(self, other: FeatureDecoder) -> None:
        """Take the weights of a draft that is :meth:`alike`. What is cached is only stale."""
        self.draft, self._head, self._body = other.draft, other._head, other._body

    def alike(self, other: FeatureDecoder) -> bool:
        """Return whether another draft reads the same hidden states of the target in the same way, over a cache of the
        same shape."""
        one, two = ((each.draft.kind, each.layers, each.most, each._shape) for each in (self, other))
        return one == two

    @property
    def _shape(self) -> tuple[int, int, int] | None:
        """Layers, heads of their keys, and the width of those."""
        return None if self._body is None else self._body.shape

    def beside(self, rows: int, length: int) -> FeatureDecoder:
        """Return the same draft's passes over a cache of their own."""
        return FeatureDecoder(self.draft, self.target, rows, length, self.limit)

    def logits(self, hidden: Tensor, step: int = 0) -> Tensor:
        """Return the logits (…, V) of step ``step`` at features (…, H), the draft's own or, for Medusa, the target's:
        −∞ for tokens that it cannot propose."""
        return self.draft.whole(self.proposed(hidden, step))

    def proposed(self, hidden: Tensor, step: int = 0) -> Tensor:
        """Return the logits over what the draft can propose alone, (…, Vd); see :meth:`logits`."""
        draft = self.draft
        if draft.at_once:
            hidden = hidden.reshape(*hidden.shape[:-1], -1, draft.hidden_size)[..., step, :]
        if isinstance(draft, MedusaDraft):
            if len(draft.lm_heads):
                return draft.head_logits(hidden, step, self.target.head)
            hidden = draft.blocks[step](hidden)
        return self.target.head.finish(self._head(self.embedding(hidden)))

    def embedding(self, hidden: Tensor) -> Tensor:
        """Return what the output layer reads of features (…, H), of the same shape: the embedding that an acceptance
        head reads of the token that was fed last."""
        if isinstance(self.draft, EagleDraft):
            return self.draft.norm_out(hidden)
        return self.draft.norm(hidden) if isinstance(self.draft, DFlashDraft) else hidden

    def read(
        self, starts: Sequence[int], features: Tensor, tokens: Tensor, counts: Sequence[int], first: int = 0,
        ahead: int = 0,
    ) -> Tensor:  # fmt: skip
        """Read ``counts[i]`` columns of rows ``first`` … from ``starts[i]`` on, padded to T: the target's ``features``
        (B, T, F) and the tokens (B, T) after them. Return the feature of each row's last column, (B, H).

        A draft that drafts all at once fills the first ``ahead`` places behind them in the same pass, of row 0 and
        those after it; returned are the features of those, (B, ahead · H)."""
        place = DraftColumns(first, starts, counts)
        if self._body is None:
            return features[torch.arange(len(counts), device=self.device), place.last(self.device)]
        return self._body.read(self.cache, place, features, tokens, self.target.embed, ahead)

    def go_on(self, starts: Sequence[int], hidden: Tensor, tokens: Tensor) -> Tensor:
        """Read one more column a row, at ``starts[i]``: its own features (B, H) and the drafted tokens (B,) after them.
        Return the next features, (B, H)."""
        if not self.runs_on:
            return hidden
        self.cache.extend(0, [start + 1 for start in starts])
        self.cache.aim(0, starts, 1, [1] * len(starts))
        return self._pass(hidden.unsqueeze(1), tokens.unsqueeze(1))[:, 0]

    def branch(self, starts: Sequence[int], offset: int, layout: Layout, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Read T nodes of each row's tree, whose first columns are ``starts[i]``, after ``offset`` nodes that were read
        before: the features before them (B, T, H) and their tokens (B, T). ``layout``: their depths, from 0, and which
        of the offset + T nodes each sees. Return the features that follow, (B, T, H)."""
        if not self.runs_on:
            return hidden
        self.cache.extend(0, [start + offset + tokens.shape[1] for start in starts])
        self.cache.aim_tree(starts, *layout, [tokens.shape[1]] * len(starts), None, offset)
        return self._pass(hidden, tokens)

    def _pass(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        assert isinstance(self._body, EagleLayers)
        return self._body(self.target.embed(tokens), hidden, self.cache)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy a row's first columns over another row."""
        self.cache.move_row(source, target, length)

    def release_row(self, row: int) -> None:
        """Give back what a row holds of the cache: it has ended."""
        self.cache.release_row(row)


def _head(draft: FeatureDraft, target: FeatureTarget) -> Product | Any:
    """Return the product with the output layer's rows that the draft proposes: the target's own where that is all of
    them."""
    if draft.lm_head is not None:
        return product_of(draft.lm_head.weight, None)
    layer = target.head.layer
    if draft.token_map is None:
        return llama_forward.fused_head(target.module) or layer
    bias = getattr(layer, "bias", None)
    rows = draft.token_map.to(layer.weight.device)
    return product_of(layer.weight[rows], None if bias is None else bias[rows])


@dataclass(frozen=True)
class FeatureModel(Model):
    """A feature draft in memory, ready to decode beside its target."""

    target: Model = field(kw_only=True)
    """The target that it reads."""

    @property
    def draft(self) -> FeatureDraft:
        """Its weights."""
        return cast(FeatureDraft, cast(Any, self.module))

    @cached_property
    def vocab_size(self) -> int:
        """Width of its logits: the target's."""
        return self.target.vocab_size

    @cached_property
    def device(self) -> torch.device:
        """The device of the target's output layer, where it computes."""
        return next(self.draft.parameters()).device

    def decoder(self, rows: int, length: int) -> Decoder:
        """Return its passes, with a cache for ``rows`` rows of ``length`` positions."""
        return cast(Decoder, FeatureDecoder(self.draft, feature_target(self.target), rows, length, self.limit))


def feature_target(model: Model) -> FeatureTarget:
    """Return a target in memory as feature drafts read it."""
    return FeatureTarget(model.module, model.name, model.digest)


def feature_model(name: str, draft: FeatureDraft, target: Model) -> FeatureModel:
    """Return a feature draft beside its target. ``name``: the folder that it came from."""
    limit = target.limit if draft.kind == "medusa" else min(target.limit, position_limit(draft.config))
    return FeatureModel(name, cast(Any, draft), limit, _built_by_its_decoder, target=target)


def _built_by_its_decoder(module: object) -> None:
    """Take the place of a forward pass over the whole model, which a feature draft has not."""


def load_feature_model(folder: Path, target: Model) -> FeatureModel:
    """Load a feature draft for a target in memory. Raises FeatureDraftNotLoaded, FeatureDraftMismatch."""
    return feature_model(str(folder), load_feature_draft(folder, feature_target(target)), target)
