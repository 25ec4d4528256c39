"""Losses of feature drafts over recorded texts: the distances of :mod:`trainer.distil.losses` at each step of their
chains, and EAGLE's regression of the target's features.

A chain that begins at column t has drafted by its step k, k = 0 …, a token for position t + 2 + k
(:mod:`osd.models.features.base`). Every position that was recorded is met by one chain at each step, but for those so
near to the prompt's end that the chain would have begun within the prompt, where nothing is drafted.

Over a draft vocabulary the target's distribution is that of the tokens in it, and a position weighs as much as the
target gives those: forward KL then has the gradient that it has over the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osd.models.features.base import AHEAD, FeatureDraft
from osd.models.features.medusa import MedusaDraft
from osd.models.features.target import FeatureTarget, OutputHead
from storage.settings import LearnSettings
from trainer.distil.collate import TrainingBatch
from trainer.distil.losses import LOWEST_LOGPROB, draft_log_probs, target_log_probs
from trainer.distil.step import Losses


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
        return super().__call__(self._pick(hidden), rows)

    @contextmanager
    def picking(self, draft: FeatureDraft) -> Iterator[None]:
        """Let the draft's own output layers compute these columns alone, too, during the block."""
        own = [draft.lm_head, *cast(Sequence[nn.Module], getattr(draft, "lm_heads", ()))]
        with ExitStack() as hooks:
            for layer in own:
                if layer is not None:
                    hooks.enter_context(layer.register_forward_pre_hook(lambda _, args: (self._pick(args[0]),)))
            yield

    def _pick(self, hidden: Tensor) -> Tensor:
        return hidden.flatten(0, 1).index_select(0, self._left.pop(0))


def reached(batch: TrainingBatch, at: Sequence[Tensor], accepted: Sequence[Tensor]) -> list[Tensor]:
    """Return by step (n,) the chance that a chain gets as far as each of the batch's positions ``at`` (n,): the product
    of the chances ``accepted`` (n,) of its earlier tokens. A chain ends at a position that was not recorded."""
    chances, width = [], batch.input_ids.shape[1]
    got = accepted[0].new_zeros(len(batch.input_ids) * width)
    for step, (index, chance) in enumerate(zip(at, accepted, strict=True)):
        flat = batch.rows[index] * width + batch.columns[index]
        before = got[flat - 1] if step else torch.ones_like(chance)
        chances.append(before)
        got = torch.zeros_like(got).index_copy_(0, flat, before * chance)
    return chances


class Outcomes(NamedTuple):
    """Target and draft over the same c outcomes at n positions."""

    log_p: Tensor
    """(n, c) of the target, among what the draft can propose."""
    log_q: Tensor
    """(n, c)"""
    mass: Tensor
    """(n,) the target's chance of all that the draft can propose."""


class FeatureLosses(Losses):
    """A feature draft and what it is trained on."""

    def __init__(self, model: FeatureDraft, learn: LearnSettings, shared: FeatureTarget) -> None:
        super().__init__(model, learn)
        self._learn, self._shared = learn, shared

    def forward(self, batch: TrainingBatch) -> Tensor:
        """Return the sum over the batch's positions of the mean over steps, step k weighing λ^k."""
        draft, learn = cast(FeatureDraft, self.model), self._learn
        total, weights = batch.outside.new_zeros(()), 0.0
        steps = draft.heads if isinstance(draft, MedusaDraft) else learn.steps  # a head that is not taught drafts noise
        for depth in unroll_at(draft, self._shared, batch, steps):
            weight = learn.step_weight**depth.step
            total, weights = total + weight * self._at(draft, batch, depth).sum(), weights + weight
        return total / weights

    def _at(self, draft: FeatureDraft, batch: TrainingBatch, depth: Depth) -> Tensor:
        """Return the loss (n,) of one step."""
        outcomes = outcomes_at(draft, batch, depth, self._temperature)
        loss = outcomes.mass * self._measure(outcomes.log_p, outcomes.log_q)
        if draft.kind == "eagle" and self._learn.feature_weight:
            loss = loss + self._learn.feature_weight * feature_regression(batch, depth)
        return loss


def outcomes_at(draft: FeatureDraft, batch: TrainingBatch, depth: Depth, temperature: float = 1.0) -> Outcomes:
    """Return what target and draft say at a step's positions: over single tokens where the target's whole distributions
    are known, else over those that were stored and all others together."""
    if batch.rows_logprobs is not None:
        return _whole(draft, batch.rows_logprobs, depth, temperature)
    ids = batch.topk_ids[depth.at]
    log_p = target_log_probs(batch.topk_logprobs[depth.at], batch.outside[depth.at], draft.vocab_size, temperature)
    log_q = draft_log_probs(spread(draft, depth.logits), ids, temperature)
    if draft.token_map is None:
        return Outcomes(log_p, log_q, torch.ones_like(log_p[:, 0]))
    known = torch.zeros(draft.vocab_size, dtype=torch.bool, device=ids.device)
    known[draft.token_map] = True
    away = ~F.pad(known[ids], (0, log_p.shape[1] - ids.shape[1]), value=True)
    mass = log_p.masked_fill(away, -torch.inf).logsumexp(1, keepdim=True)
    kept = (log_p - mass).masked_fill(away, LOWEST_LOGPROB)
    return Outcomes(kept, log_q.masked_fill(away, LOWEST_LOGPROB), mass.squeeze(1).exp())


def _whole(draft: FeatureDraft, rows: Tensor, depth: Depth, temperature: float) -> Outcomes:
    """Return outcomes over single tokens. ``rows`` (m, V): log-probabilities, which a temperature of 1 leaves as they
    are: a copy of them is what a large vocabulary's loss costs."""
    log_q = (depth.logits if temperature == 1 else depth.logits / temperature).log_softmax(1)
    if temperature != 1:
        rows = (rows / temperature).log_softmax(1)
    if draft.token_map is None:
        return Outcomes(rows[depth.at], log_q, torch.ones_like(log_q[:, 0]))
    log_p = rows[depth.at[:, None], draft.token_map]
    mass = log_p.logsumexp(1, keepdim=True)
    return Outcomes(log_p - mass, log_q, mass.squeeze(1).exp())


def spread(draft: FeatureDraft, logits: Tensor) -> Tensor:
    """Spread logits (n, Vd) over the target's ids, (n, V); least where the draft proposes nothing, but finite."""
    if draft.token_map is None:
        return logits
    whole = logits.new_full((len(logits), draft.vocab_size), LOWEST_LOGPROB)
    return whole.index_copy(1, draft.token_map, logits)


def feature_regression(batch: TrainingBatch, depth: Depth) -> Tensor:
    """Return (n,) the smooth L1 distance, a mean over their width, of the draft's features and the target's at the
    column before each position (EAGLE, Section 4.2: L_reg)."""
    assert batch.features is not None and depth.features is not None
    theirs = batch.features[batch.rows[depth.at], batch.columns[depth.at]].to(depth.features.dtype)
    return F.smooth_l1_loss(depth.features, theirs, reduction="none").mean(1)
