"""Losses of feature drafts: the distances of :mod:`trainer.distil.losses` at each step of their chains, and EAGLE's
regression of the target's features.

Over a draft vocabulary the target's distribution is that of the tokens in it, and a position weighs as much as the
target gives those: forward KL then has the gradient that it has over the whole vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from osd.models.features.base import FeatureDraft
from osd.models.features.target import FeatureTarget
from storage.settings import LearnSettings
from trainer.distil.chains import Depth, unroll_at
from trainer.distil.collate import TrainingBatch
from trainer.distil.losses import LOWEST_LOGPROB, draft_log_probs, target_log_probs
from trainer.distil.step import Losses


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
        for depth in unroll_at(draft, self._shared, batch, learn.steps):
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
