"""Fitting of a head on embeddings. The draft is not trained, so each token is embedded once for all epochs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from osd.models.acceptance_head import AcceptanceHead
from storage.settings import LearnSettings
from trainer.distil.optimizer import Moments, Schedule, adamw, scale, steps_done
from trainer.distil.step import NotFinite
from trainer.heads.examples import Examples
from trainer.heads.losses import weighted_bce
from trainer.heads.scaling import rescale


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
    """Factor and offset that were applied to the estimates at the end (:mod:`trainer.heads.scaling`)."""
    seconds: float


def adam(head: AcceptanceHead, learn: LearnSettings, moments: Moments | None = None) -> torch.optim.AdamW:
    """Create the Adam optimizer of the paper (appendix D.1), continuing from ``moments`` where they fit."""
    return adamw(
        head, learn.model_copy(update={"learning_rate": learn.head_learning_rate, "weight_decay": 0.0}), moments
    )


def fit(
    head: AcceptanceHead,
    examples: Examples,
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
    head: AcceptanceHead, examples: Examples, which: torch.Tensor, optimizer: torch.optim.Optimizer, clip: float
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
