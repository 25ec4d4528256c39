"""One step of training: the mean loss over a batch's positions, its gradient, and the optimizer's step.

Several processes may take a step together (:mod:`trainer.distil.processes`). Each computes its share of the batch's
requests, and gradients are averaged over processes: so each weighs its sum by their number over the positions of the
whole batch, and the step is that of one process whatever the shares are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from osd.models.lora.merging import gather, ties
from storage.settings import LearnSettings
from trainer.distil.collate import TrainingBatch, predict
from trainer.distil.losses import (
    LABELS,
    cross_entropy,
    distance,
    draft_log_probs,
    fitted,
    forward_kl,
    target_log_probs,
)
from trainer.distil.optimizer import whole


class NotFinite(Exception):
    """The loss or the gradient became NaN or infinite."""


class NothingToLearn(Exception):
    """None of the requests that a run claimed can be learned from."""

    def __init__(self, reason: str, facts: dict[str, Any]) -> None:
        super().__init__(reason)
        self.facts = facts
        """What the run's result says beside the reason."""


class Losses(nn.Module):
    """A draft and the distance that it is trained on: one module, so that one pass is what may be wrapped (DDP)."""

    def __init__(self, model: nn.Module, learn: LearnSettings) -> None:
        super().__init__()
        self.model, self._temperature = model, learn.temperature
        self._labels = learn.loss == LABELS
        self._measure = forward_kl if self._labels else distance(learn.loss, learn.jsd_beta)

    def forward(self, batch: TrainingBatch) -> Tensor:
        """Return the weighted sum of the distances at the batch's positions."""
        logits = predict(self.model, batch)
        if self._labels:
            return (batch.weights * cross_entropy(logits, batch.tokens)).sum()
        return (batch.weights * self._measure(*self._outcomes(batch, logits))).sum()

    def _outcomes(self, batch: TrainingBatch, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of target and draft over the same outcomes, (m, c) each."""
        temperature = self._temperature
        if batch.rows_logprobs is not None:
            rows = fitted(batch.rows_logprobs, logits.shape[1])
            return (rows / temperature).log_softmax(1), (logits / temperature).log_softmax(1)
        log_p = target_log_probs(batch.topk_logprobs, batch.outside, logits.shape[1], temperature)
        return log_p, draft_log_probs(logits, batch.topk_ids, temperature)


class Alone:
    """The processes that take a step together: this one alone."""

    count = 1
    """Number of processes."""

    def wrap(self, losses: Losses) -> nn.Module:
        """Return the module whose backward pass averages gradients over the processes."""
        return losses

    def share(self, chunk: Sequence[int]) -> tuple[Sequence[int], float]:
        """Return this process's part of a batch's requests, and the weight of that part."""
        return chunk, 1.0

    def total(self, value: float) -> float:
        """Return the sum of the processes' values."""
        return value


ALONE = Alone()


def take_step(
    losses: nn.Module,
    parts: Iterable[TrainingBatch],
    size: int,
    clip_norm: float,
    optimizer: torch.optim.Optimizer,
    together: Alone = ALONE,
    weight: float = 1.0,
) -> float:
    """Take one step on the mean loss over ``size`` positions of all processes, summing gradients over the parts; return
    that loss. Raises NotFinite."""
    trained = [p for p in losses.parameters() if p.requires_grad]
    optimizer.zero_grad(set_to_none=True)
    value = 0.0
    for batch in parts:
        with _precision(batch.input_ids.device):
            loss = losses(batch) * weight / size
        (loss * together.count).backward()
        value += float(loss.detach())
    gather(ties(unwrapped(losses)))
    norm, value = float(whole(nn.utils.clip_grad_norm_(trained, clip_norm))), together.total(value)
    if not (math.isfinite(value) and math.isfinite(norm)):
        raise NotFinite(f"the loss became {value} with a gradient of norm {norm}")
    optimizer.step()
    return value


def unwrapped(losses: nn.Module) -> nn.Module:
    """Return the draft within :class:`Losses`, wrapped or not."""
    inner = losses if isinstance(losses, Losses) else losses.module
    assert isinstance(inner, Losses)
    return inner.model


def _precision(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()
