"""Feature drafts over recorded texts: what the steps of the chains say that begin at each column.

A chain that begins at column t has drafted by its step k, k = 0 …, a token for position t + 2 + k
(:mod:`osd.models.features.base`). Every position that was recorded is met by one chain at each step, but for those so
near to the prompt's end that the chain would have begun within the prompt, where nothing is drafted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from osd.models.features.base import AHEAD, FeatureDraft
from osd.models.features.target import FeatureTarget, OutputHead
from trainer.distil.collate import TrainingBatch


class Depth(NamedTuple):
    """One step of all chains over a batch, at the positions that it predicts: n of the batch's m."""

    step: int
    at: Tensor
    """(n,) which of the batch's positions these are."""
    begins: Tensor
    """(n,) the columns at which their chains begin."""
    logits: Tensor
    """(n, V), or (n, Vd) over the draft vocabulary, float32."""
    features: Tensor | None
    """(n, H) the draft's own features there; None for a draft that has none."""


def unroll_at(draft: FeatureDraft, shared: FeatureTarget, batch: TrainingBatch, steps: int) -> list[Depth]:
    """Compute the steps of a draft at a batch's positions, logits nowhere else. A teacher must have completed it."""
    assert batch.features is not None
    indices = [positions_at(batch, step) for step in range(steps)]
    first = int(batch.starts.min())
    places = [_places(batch, index, step, first) for step, index in enumerate(indices)]
    features = batch.features.to(next(draft.parameters()).dtype)
    head = PickingHead(shared.head, places)
    with head.picking(draft):
        found = draft.unroll(features, batch.input_ids, shared.embed, head, steps, first)
    return [
        Depth(
            step, index, batch.columns[index] + 1 - AHEAD - step, each.logits.float(),
            None if each.features is None else each.features.flatten(0, 1)[place],
        )
        for step, (index, place, each) in enumerate(zip(indices, places, found, strict=False))
    ]  # fmt: skip


def positions_at(batch: TrainingBatch, step: int) -> Tensor:
    """Return the indices (n,) of the batch's positions that chains predict in a step: those that begin at the prompt's
    last column or later."""
    return (batch.columns + 1 - AHEAD - step >= batch.starts).nonzero().squeeze(1)


def _places(batch: TrainingBatch, index: Tensor, step: int, first: int) -> Tensor:
    """Return where the chains to these positions begin, among the batch's b · c columns from ``first`` on: (n,)."""
    width = batch.input_ids.shape[1] - first
    return batch.rows[index] * width + batch.columns[index] + 1 - AHEAD - step - first


class PickingHead(OutputHead):
    """A target's output layer that computes, step after step, the logits of some columns alone."""

    def __init__(self, head: OutputHead, places: Sequence[Tensor]) -> None:
        """``places``: for each step, indices (n,) among the b · c columns."""
        vars(self).update(vars(head))
        self._left = list(places)

    def __call__(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return logits (n, V) or (n, Vd) of hidden states (b, c, H)."""
        return super().__call__(self._pick(hidden).to(self.weight.dtype), rows)

    @contextmanager
    def picking(self, draft: FeatureDraft) -> Iterator[None]:
        """Let the draft's own output layers compute these columns alone, too, during the block."""
        own = [draft.lm_head, *cast(Sequence[nn.Module], getattr(draft, "lm_heads", ()))]
        with ExitStack() as hooks:
            for layer in own:
                if layer is not None:
                    handle = layer.register_forward_pre_hook(lambda _, args: (self._pick(args[0]),))
                    hooks.callback(handle.remove)
            yield

    def _pick(self, hidden: Tensor) -> Tensor:
        return hidden.flatten(0, 1).index_select(0, self._left.pop(0))


def reached(batch: TrainingBatch, depths: Sequence[Depth], accepted: Sequence[Tensor]) -> list[Tensor]:
    """Return by step (n,) the chance that a chain gets as far as each position: the product of the chances ``accepted``
    (n,) of its earlier tokens. A chain ends at a position that was not recorded."""
    chances, width = [], batch.input_ids.shape[1]
    got = accepted[0].new_zeros(len(batch.input_ids) * width)
    for depth, chance in zip(depths, accepted, strict=True):
        flat = batch.rows[depth.at] * width + batch.columns[depth.at]
        before = got[flat - 1] if depth.step else torch.ones_like(chance)
        chances.append(before)
        got = torch.zeros_like(got).index_copy_(0, flat, before * chance)
    return chances
