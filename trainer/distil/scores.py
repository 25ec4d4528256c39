"""Scores of drafts on recorded texts: how often the target would accept what they say, request by request.

Of drafts that read the target's hidden states chains are scored (:mod:`trainer.distil.feature_losses`), for what they
draft after the first token rests on what they said before: a position is a token that a chain of ``learn.steps`` would
have drafted, and its score is the chance that the chain gets there and the token is accepted. The mean is accepted ÷
drafted.

First choices are counted by depth: a chain that begins anywhere in an output has a depth d where all its earlier first
choices were the tokens that followed, d = 0 always. An ordinary draft reads the text up to there, a feature draft its
own features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

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
DEPTHS = 5
"""Depths at which first choices of an ordinary draft are counted; of a feature draft there are ``learn.steps``."""


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
    chains: Array
    """(n, D) chains that have depth d."""
    right: Array
    """(n, D) those whose first choice there is the emitted token."""
    chosen: Array
    """(n, D) the target's probability of their first choice; 0 where it is not among the tokens that were kept."""

    def of(self, measure: Measure) -> Array:
        """Return the sums of one measure."""
        return self.expected if measure == "expected_acceptance" else self.agreement


class Counted(NamedTuple):
    """What is counted at n positions of a batch, of chains that have one depth there."""

    requests: Tensor
    """(n,)"""
    depth: int
    by_depth: tuple[Tensor, ...]
    """(n,) each: what is summed in ``chains``, ``right`` and ``chosen``."""
    columns: tuple[Tensor, ...] = ()
    """(n,) each: what is summed in the other arrays of DraftScores, in their order."""


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
    depths = lessons.steps if lessons and isinstance(model, FeatureDraft) else DEPTHS
    sums, by_depth = np.zeros((4, len(samples))), np.zeros((depths, 3, len(samples)))
    for chunk in plan(samples, SCORING_TOKENS):
        some = [samples[i] for i in chunk]
        batch = collate(some, chunk).to(device_of(model))
        batch = batch if lessons is None else lessons.teacher.complete(batch, some)
        for counted in _counted(model, batch, lessons):
            rows, columns = [*by_depth[counted.depth], *sums], counted.by_depth + counted.columns
            for row, column in zip(rows, columns, strict=False):
                np.add.at(row, counted.requests.numpy(force=True), column.double().numpy(force=True))
        between()
    return DraftScores(*sums, *by_depth.transpose(1, 2, 0))


def _counted(model: nn.Module, batch: TrainingBatch, lessons: Lessons | None) -> Iterator[Counted]:
    """Yield what is counted in a batch, depth after depth."""
    if isinstance(model, FeatureDraft):
        assert lessons is not None
        yield from chain_scores(model, batch, lessons)
        return
    logits = predict(model, batch)
    expected, unknown = overlaps(batch, slice(None), logits)
    choices = logits.argmax(dim=1)
    right, chosen = (choices == batch.tokens).float(), chances_of(batch, slice(None), choices, logits.shape[1])
    begun = [batch.columns - step >= batch.starts for step in range(1, DEPTHS)]
    at = [torch.arange(len(right), device=right.device), *(each.nonzero().squeeze(1) for each in begun)]
    columns = torch.ones_like(expected), expected, unknown, right
    for depth, (index, got) in enumerate(zip(at, reached(batch, at, [right[index] for index in at]), strict=True)):
        by_depth = got, got * right[index], got * chosen[index]
        yield Counted(batch.requests[index], depth, by_depth, () if depth else columns)


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


def chances_of(batch: TrainingBatch, index: Tensor | slice, choices: Tensor, width: int) -> Tensor:
    """Return (n,) the target's probabilities of tokens (n,) at the batch's positions ``index`` (n,), out of ``width``
    that the draft knows; 0 for those that were not kept."""
    if batch.rows_logprobs is not None:
        return fitted(batch.rows_logprobs[index], width).gather(1, choices.unsqueeze(1)).squeeze(1).exp()
    return (batch.topk_logprobs[index].exp() * (batch.topk_ids[index] == choices.unsqueeze(1))).sum(1)


def chain_scores(draft: FeatureDraft, batch: TrainingBatch, lessons: Lessons) -> Iterator[Counted]:
    """Yield the same of each step of the chains over a batch."""
    depths = unroll_at(draft, lessons.teacher.shared, batch, lessons.steps)
    whole = [spread(draft, depth.logits) for depth in depths]
    both = [overlaps(batch, depth.at, logits) for depth, logits in zip(depths, whole, strict=True)]
    at, choices = [depth.at for depth in depths], [each.argmax(1) for each in whole]
    right = [(some == batch.tokens[index]).float() for some, index in zip(choices, at, strict=True)]
    sampled, greedy = (reached(batch, at, chances) for chances in ([known for known, _ in both], right))
    for depth, index in enumerate(at):
        (known, unknown), straight = both[depth], greedy[depth]
        agrees = straight * right[depth]
        columns = torch.ones_like(known), sampled[depth] * known, sampled[depth] * unknown, agrees
        by_depth = straight, agrees, straight * chances_of(batch, index, choices[depth], draft.vocab_size)
        yield Counted(batch.requests[index], depth, by_depth, columns)


def joined(scores: Sequence[DraftScores]) -> DraftScores:
    """Concatenate the scores of several sets of requests."""
    return DraftScores(*(np.concatenate([getattr(each, f.name) for each in scores]) for f in fields(DraftScores)))
