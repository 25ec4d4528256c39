"""Fitting of a head on embeddings: the paper's weighted loss, training itself, and Platt scaling at the end.

The draft is not trained, so each token is embedded once for all epochs.

Trained with rejections that weigh w_rej times, a head that cannot separate all probabilities gives way where that costs
least, and undoing the weight does not undo this. Two numbers do:

    x ← s x + b       s, b minimise the mean of −P log σ(x) − (1 − P) log(1 − σ(x)) over the tokens

They go into the output layer, so that a head's file format is unchanged. Shapes: n drafted tokens; a logit x stands for
the estimate sigmoid(x).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osd.models.acceptance_head import AcceptanceHead
from storage.settings import LearnSettings
from trainer.distil.optimizer import Moments, Schedule, adamw, scale, steps_done
from trainer.distil.step import NotFinite
from trainer.heads.examples import HeadExamples

BINS = 15
"""Number of bins of the calibration error, as is usual."""
_STEPS = 12
"""Newton steps (each doubles the digits), and halvings of a step."""
_AS_IT_IS = 16.0
"""Tokens of weight given to the identity, so that few tokens do not determine the slope."""


def weighted_bce(logits: Tensor, chances: Tensor, reject_weight: float) -> Tensor:
    """Return (n,) −P log P̂ − w_rej (1 − P) log(1 − P̂) with P̂ = sigmoid(logits): section 4.4 of SpecDec++, w_acc = 1.

    −log P̂ is softplus(−x) and −log(1 − P̂) is softplus(x), which neither overflows nor loses small numbers.
    """
    return chances * F.softplus(-logits) + reject_weight * (1 - chances) * F.softplus(logits)


def binary_kl(chances: Tensor, logits: Tensor) -> Tensor:
    """Return (n,) KL(P ‖ P̂) = P log(P ÷ P̂) + (1 − P) log((1 − P) ÷ (1 − P̂)): appendix D.3. It is BCE − entropy of
    P."""
    entropy = -torch.xlogy(chances, chances) - torch.xlogy(1 - chances, 1 - chances)
    return weighted_bce(logits, chances, 1.0) - entropy


def calibration_error(chances: Tensor, estimates: Tensor, bins: int = BINS) -> float:
    """Return Σ over bins of (its share of tokens) · |its mean probability − its mean estimate|; bins of equal width
    over the estimates in [0, 1]."""
    place = (estimates * bins).long().clamp(0, bins - 1)
    gaps = torch.zeros(bins, dtype=torch.double).index_add_(0, place, (chances - estimates).double())
    return float(gaps.abs().sum() / len(chances))


@dataclass(frozen=True, slots=True)
class Fitted:
    """The result of fitting a head."""

    steps: int
    tokens: int
    """Drafted tokens trained on, counted once."""
    loss_first: float
    """Mean weighted loss per token in the first epoch."""
    loss_last: float
    slope: float
    level: float
    """Factor and offset that were applied to the estimates at the end."""
    seconds: float


def adam(head: AcceptanceHead, learn: LearnSettings, moments: Moments | None = None) -> torch.optim.AdamW:
    """Create the Adam optimizer of the paper (appendix D.1), continuing from ``moments`` where they fit."""
    return adamw(
        head, learn.model_copy(update={"learning_rate": learn.head_learning_rate, "weight_decay": 0.0}), moments
    )


def fit(
    head: AcceptanceHead,
    examples: HeadExamples,
    learn: LearnSettings,
    between: Callable[[], None] = lambda: None,
    *,
    schedule: Schedule = "constant",
    optimizer: torch.optim.AdamW | None = None,
) -> Fitted:
    """Train the head in place for ``learn.head_epochs`` epochs in batches of ``learn.head_batch`` tokens, then rescale
    it.

    The weight of rejections is that of the head's config. Raises NotFinite, and what ``between`` raises.
    """
    started = time.perf_counter()
    optimizer = optimizer or adam(head, learn)
    steps = learn.head_epochs * math.ceil(len(examples) / learn.head_batch)
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, scale(schedule, steps_done(optimizer), steps))
    chance = torch.Generator().manual_seed(learn.seed)
    means = []
    for _ in range(learn.head_epochs):
        total = 0.0
        order = torch.randperm(len(examples), generator=chance)
        for which in torch.split(order, learn.head_batch):
            total += _step(head, examples, which, optimizer, learn.clip_norm) * len(which)
            pace.step()
            between()
        means.append(total / len(examples))
    line = rescale(head, examples)
    return Fitted(steps, len(examples), means[0], means[-1], *line, time.perf_counter() - started)


def _step(
    head: AcceptanceHead, examples: HeadExamples, which: torch.Tensor, optimizer: torch.optim.Optimizer, clip: float
) -> float:
    logits = head(examples.embeddings[which])
    loss = weighted_bce(logits, examples.chances[which], head.config.reject_weight).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(head.parameters(), clip)
    value = float(loss.detach())
    if not (math.isfinite(value) and math.isfinite(float(norm))):
        raise NotFinite(f"the head's loss became {value} with a gradient of norm {float(norm)}")
    optimizer.step()
    return value


@torch.no_grad()
def rescale(head: AcceptanceHead, examples: HeadExamples) -> tuple[float, float]:
    """Fold s and b into the head's output layer, and return them; (1, 0) where that is no gain."""
    logits, chances = head.estimate(examples.embeddings).double(), examples.chances.double()
    slope, level = best_line(logits, chances)
    before, after = (float(weighted_bce(x, chances, 1.0).mean()) for x in (logits, slope * logits + level))
    if not (slope > 0 and after < before):
        return 1.0, 0.0
    undone = math.log(head.config.reject_weight)  # the head's estimate subtracts it, so it is added again
    head.out.weight.mul_(slope)
    head.out.bias.add_(undone).mul_(slope).add_(level - undone)
    return slope, level


def best_line(logits: Tensor, chances: Tensor) -> tuple[float, float]:
    """Return (s, b) for logits and chances (n,), float64, by Newton steps that are halved where they would go
    uphill."""
    columns, start = torch.stack([logits, torch.ones_like(logits)]), logits.new_tensor([1.0, 0.0])

    def loss(line: Tensor) -> Tensor:
        return weighted_bce(line @ columns, chances, 1.0).sum() + _AS_IT_IS / 2 * (line - start).square().sum()

    found, height = start, loss(start)
    for _ in range(_STEPS):
        said = (found @ columns).sigmoid()
        slope_of_loss = columns @ (said - chances) + _AS_IT_IS * (found - start)
        bend = (columns * (said * (1 - said))) @ columns.T + _AS_IT_IS * torch.eye(2, dtype=logits.dtype)
        step = torch.linalg.solve(bend, slope_of_loss)
        for _ in range(_STEPS):
            if (there := loss(found - step)) < height:
                found, height = found - step, there
                break
            step = step / 2
        else:
            break  # nothing is lower: converged
    return float(found[0]), float(found[1])
