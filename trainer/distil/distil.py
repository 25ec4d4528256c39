"""Distillation of a draft on stored samples, with the loss that ``[learn]`` names. OSD Eqs. 2 and 4."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from osd.models.lora.tied import gather, ties
from storage.records import RequestSamples
from storage.settings import LearnSettings
from trainer.distil.collate import TrainingBatch, collate, device_of, plan, predict, select
from trainer.distil.losses import Distance, distance, draft_log_probs, target_log_probs
from trainer.distil.microbatches import MicroBatches
from trainer.distil.optimizer import Schedule, adamw, scale, steps_done

log = logging.getLogger("osd.trainer")

CURVE = 32
"""Maximum number of points of a loss curve."""


@dataclass(frozen=True, slots=True)
class DistilProgress:
    """The progress of a distillation."""

    step: int
    steps: int
    loss: float
    """Mean over the positions of the newest batch."""
    positions_per_second: float


@dataclass(frozen=True, slots=True)
class Distilled:
    """The result of a distillation."""

    steps: int
    requests: int
    positions: int
    """Positions trained on, counted once an epoch."""
    loss_first: float
    """Mean loss per position in the first epoch."""
    loss_last: float
    """Mean loss per position in the last epoch."""
    loss_curve: tuple[float, ...]
    """Mean loss of the batches in each of at most CURVE equal stretches of steps."""
    seconds: float


class NotFinite(Exception):
    """The loss or the gradient became NaN or infinite."""


Between = Callable[[DistilProgress], None]
"""A callback between two batches: for a heartbeat, for letting others run, or for stopping by an exception."""


def distil(
    model: nn.Module,
    samples: Sequence[RequestSamples],
    learn: LearnSettings,
    between: Between = lambda _: None,
    *,
    schedule: Schedule = "linear",
    optimizer: torch.optim.AdamW | None = None,
    slices: MicroBatches | None = None,
) -> Distilled:
    """Train ``model`` in place on ``samples`` for ``learn.epochs``; only parameters that require a gradient change.

    ``optimizer`` continues from earlier runs (:func:`trainer.distil.optimizer.adamw`); by default it is fresh.
    ``slices`` cuts each step's batch, to let others have the device in between.

    At least one request must have positions of the kind that ``learn.positions`` names. The model's parameters
    are float32; on a GPU the forward pass runs in bfloat16. Raises NotFinite, and whatever ``between``
    raises; the model is then half trained and must be discarded.
    """
    started = time.perf_counter()
    chosen = [s for s in (select(s, learn.positions) for s in samples) if len(s)]
    seeds = range(learn.seed, learn.seed + learn.epochs)
    epochs = [plan(chosen, learn.batch_tokens, seed, learn.batch_positions) for seed in seeds]
    steps = sum(map(len, epochs))
    optimizer = optimizer or adamw(model, learn)
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, scale(schedule, steps_done(optimizer), steps))
    measure = distance(learn.loss, learn.jsd_beta)
    model.train()
    means, losses = [], []
    step = positions = 0
    for chunks in epochs:
        total = 0.0
        for chunk in chunks:
            size = sum(len(chosen[i]) for i in chunk)
            parts = [chunk] if slices is None else slices.cut(chosen, chunk)
            loss = _step(model, (_collated(model, chosen, part) for part in parts), size, measure, learn, optimizer)
            pace.step()
            losses.append(loss)
            step, positions, total = step + 1, positions + size, total + loss * size
            between(DistilProgress(step, steps, loss, positions / (time.perf_counter() - started)))
        means.append(total / sum(map(len, chosen)))
    model.train(False)
    curve, seconds = loss_curve(losses), time.perf_counter() - started
    return Distilled(step, len(chosen), positions, means[0], means[-1], curve, seconds)


def loss_curve(losses: Sequence[float], points: int = CURVE) -> tuple[float, ...]:
    """Return the means of ``losses`` (n,) over min(n, points) stretches of nearly equal length."""
    count = min(len(losses), points)
    edges = [i * len(losses) // count for i in range(count + 1)] if count else [0]
    return tuple(round(sum(losses[a:b]) / (b - a), 6) for a, b in pairwise(edges))


def loss_of(model: nn.Module, batch: TrainingBatch, measure: Distance, temperature: float) -> Tensor:
    """Return the distance at each of the batch's positions, shape (m,)."""
    logits = predict(model, batch)
    log_p = target_log_probs(batch.topk_logprobs, batch.outside, logits.shape[1], temperature)
    return measure(log_p, draft_log_probs(logits, batch.topk_ids, temperature))


def _collated(model: nn.Module, chosen: Sequence[RequestSamples], part: Sequence[int]) -> TrainingBatch:
    return collate([chosen[i] for i in part], part).to(device_of(model))


def _step(
    model: nn.Module,
    parts: Iterable[TrainingBatch],
    size: int,
    measure: Distance,
    learn: LearnSettings,
    optimizer: torch.optim.Optimizer,
) -> float:
    """Take one step on the mean loss over ``size`` positions, summing gradients over the parts; return that loss."""
    optimizer.zero_grad(set_to_none=True)
    value = 0.0
    for batch in parts:
        with _precision(device_of(model)):
            loss = loss_of(model, batch, measure, learn.temperature).sum() / size
        loss.backward()  # type: ignore[no-untyped-call]
        value += float(loss.detach())
    gather(ties(model))
    norm = nn.utils.clip_grad_norm_(_trained(model), learn.clip_norm)
    if not (math.isfinite(value) and math.isfinite(float(norm))):
        raise NotFinite(f"the loss became {value} with a gradient of norm {float(norm)}")
    optimizer.step()
    return value


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _precision(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()
