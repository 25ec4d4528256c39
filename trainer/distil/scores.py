"""Scores of drafts on recorded texts: how often the target would accept what they say, request by request.

Of drafts that read the target's hidden states chains are scored (:mod:`trainer.distil.feature_losses`), for what they
draft after the first token rests on what they said before: a position is a token that a chain of ``learn.steps`` would
have drafted, and its score is the chance that the chain gets there and the token is accepted. The mean is accepted ÷
drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from osd.models.features.base import FeatureDraft
from osd.verification.rejection_sampling import expected_acceptance
from storage.records import RequestSamples
from trainer.distil.branching import without_branches
from trainer.distil.collate import TrainingBatch, collate, device_of, plan, predict
from trainer.distil.feature_losses import reached, spread, unroll_at
from trainer.distil.losses import draft_log_probs, fitted, target_log_probs
from trainer.distil.teacher import Lessons

Array = npt.NDArray[np.float64]
Measure = Literal["expected_acceptance", "agreement"]

SCORING_TOKENS = 4096
"""Tokens in a scoring batch, padding included."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftScores:
    """A draft's scores, summed over each request's positions; (n,) each."""

    positions: Array
    expected: Array
    """Σ_v min(p, q) over the stored tokens, or over all where the target's whole distributions are known."""
    unknown: Array
    """min(p_out, q_out), by which the true value may be higher."""
    agreement: Array
    """Positions where the draft's first choice is the emitted token."""

    def of(self, measure: Measure) -> Array:
        """Return the sums of one measure."""
        return self.expected if measure == "expected_acceptance" else self.agreement


@torch.no_grad()
def score(
    model: nn.Module,
    samples: Sequence[RequestSamples],
    between: Callable[[], None] = lambda: None,
    lessons: Lessons | None = None,
) -> DraftScores:
    """Score a draft on requests that have positions; ``lessons`` say what a feature draft reads. Raises
    FeaturesNotKept."""
    samples = [without_branches(s) for s in samples]  # texts are what it drafts
    sums = np.zeros((4, len(samples)))
    for chunk in plan(samples, SCORING_TOKENS):
        some = [samples[i] for i in chunk]
        batch = collate(some, chunk).to(device_of(model))
        batch = batch if lessons is None else lessons.teacher.complete(batch, some)
        for requests, *columns in _columns(model, batch, lessons):
            for row, column in zip(sums, columns, strict=True):
                np.add.at(row, requests.numpy(force=True), column.double().numpy(force=True))
        between()
    return DraftScores(*sums)


def _columns(model: nn.Module, batch: TrainingBatch, lessons: Lessons | None) -> Iterator[tuple[Tensor, ...]]:
    """Yield the requests (n,) of some positions, and there (n,) each of DraftScores' numbers."""
    if isinstance(model, FeatureDraft):
        assert lessons is not None
        yield from chain_scores(model, batch, lessons)
        return
    logits = predict(model, batch)
    expected, unknown = overlaps(batch, slice(None), logits)
    yield batch.requests, torch.ones_like(expected), expected, unknown, logits.argmax(dim=1) == batch.tokens


def overlaps(batch: TrainingBatch, index: Tensor | slice, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ_v min(p, q) over the tokens of which p is known, and min(p_out, q_out) of all others: (n,) each, at the
    batch's positions ``index`` (n,), from the draft's logits (n, V) there."""
    if batch.rows_logprobs is not None:
        p = fitted(batch.rows_logprobs[index], logits.shape[1]).exp()
        known = expected_acceptance(p, logits.softmax(1))
        return known, torch.zeros_like(known)
    ids = batch.topk_ids[index]
    p = target_log_probs(batch.topk_logprobs[index], batch.outside[index], logits.shape[1]).exp()
    q, k = draft_log_probs(logits, ids).exp(), ids.shape[1]
    return expected_acceptance(p[:, :k], q[:, :k]), expected_acceptance(p[:, k:], q[:, k:])


def chain_scores(draft: FeatureDraft, batch: TrainingBatch, lessons: Lessons) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same of each step of the chains over a batch."""
    depths = unroll_at(draft, lessons.teacher.shared, batch, lessons.steps)
    whole = [spread(draft, depth.logits) for depth in depths]
    both = [overlaps(batch, depth.at, logits) for depth, logits in zip(depths, whole, strict=True)]
    right = [(each.argmax(1) == batch.tokens[d.at]).float() for each, d in zip(whole, depths, strict=True)]
    sampled, greedy = (reached(batch, depths, chances) for chances in ([known for known, _ in both], right))
    for depth, (known, unknown), agrees, chance, straight in zip(depths, both, right, sampled, greedy, strict=True):
        drafted = torch.ones_like(known)
        yield batch.requests[depth.at], drafted, chance * known, chance * unknown, straight * agrees


def joined(scores: Sequence[DraftScores]) -> DraftScores:
    """Concatenate the scores of several sets of requests."""
    return DraftScores(*(np.concatenate([getattr(each, f.name) for each in scores]) for f in fields(DraftScores)))
