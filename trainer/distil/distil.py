"""Distillation of a draft on stored samples, with the loss that ``[learn]`` names. OSD Eqs. 2 and 4."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from osd.models.features.base import FeatureDraft
from storage.errors import BadSetting
from storage.records import RequestSamples
from storage.settings import LearnSettings
from trainer.distil.branching import count
from trainer.distil.collate import device_of
from trainer.distil.epoch import Epoch, MicroBatches
from trainer.distil.feature_losses import FeatureLosses
from trainer.distil.losses import LABELS
from trainer.distil.optimizer import Schedule, adamw, scale, steps_done
from trainer.distil.step import ALONE, Alone, Losses, take_step
from trainer.distil.teacher import Teacher

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


Between = Callable[[DistilProgress], None]
"""A callback between two batches: for a heartbeat, for letting others run, or for stopping by an exception."""
Renew = Callable[[int], Sequence[RequestSamples]]
"""The samples of an epoch, by its number."""


def distil(
    model: nn.Module,
    samples: Sequence[RequestSamples],
    learn: LearnSettings,
    between: Between = lambda _: None,
    *,
    schedule: Schedule = "linear",
    optimizer: torch.optim.AdamW | None = None,
    slices: MicroBatches | None = None,
    together: Alone = ALONE,
    teacher: Teacher | None = None,
    renew: Renew | None = None,
) -> Distilled:
    """Train ``model`` in place on ``samples`` for ``learn.epochs``; only parameters that require a gradient change.

    ``optimizer`` continues from earlier runs (:func:`trainer.distil.optimizer.adamw`); by default it is fresh.
    ``slices`` cuts each step's batch, to let others have the device in between. ``together`` shares each batch among
    processes that all call this with the same arguments. ``teacher`` adds to the batches what a feature draft reads, or
    whole distributions; branches are left out then. ``renew`` gives other samples for each epoch after the first: texts
    that the draft had a part in, drawn anew.

    At least one request must have positions of the kinds that ``learn.positions`` and ``learn.sampling`` name. The
    model's parameters are float32; on a GPU the forward pass runs in bfloat16. Raises NotFinite, and whatever
    ``between`` raises; the model is then half trained and must be discarded.
    """
    started = time.perf_counter()
    epoch = Epoch.of(model, samples, learn, texts=teacher is not None)
    requests = epoch.requests
    steps = sum(len(epoch.planned(learn, number)) for number in range(learn.epochs))
    optimizer = optimizer or adamw(model, learn)
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, scale(schedule, steps_done(optimizer), steps))
    losses = together.wrap(_losses(model.train(), learn, teacher))
    means, values = [], []
    step = positions = 0
    for number in range(learn.epochs):
        if renew is not None and number:
            epoch = Epoch.of(model, renew(number), learn, texts=teacher is not None)
            model.train()
        chosen, total = epoch.chosen, 0.0
        for chunk in epoch.planned(learn, number):
            size = sum(count(chosen[i]) for i in chunk)
            kept, (own, weight) = min(chosen[i].topk_ids.shape[1] for i in chunk), together.share(chunk)
            parts = [own] if slices is None else slices.cut(chosen, own)
            batches = (epoch.batch(part, kept, teacher).to(device_of(model)) for part in parts)
            loss = take_step(losses, batches, size, learn.clip_norm, optimizer, together, weight)
            pace.step()
            values.append(loss)
            step, positions, total = step + 1, positions + size, total + loss * size
            between(DistilProgress(step, steps, loss, positions / (time.perf_counter() - started)))
        means.append(total / sum(map(count, chosen)))
    model.train(False)
    curve, seconds = loss_curve(values), time.perf_counter() - started
    return Distilled(step, requests, positions, means[0], means[-1], curve, seconds)


def loss_curve(losses: Sequence[float], points: int = CURVE) -> tuple[float, ...]:
    """Return the means of ``losses`` (n,) over min(n, points) stretches of nearly equal length."""
    count = min(len(losses), points)
    edges = [i * len(losses) // count for i in range(count + 1)] if count else [0]
    return tuple(round(sum(losses[a:b]) / (b - a), 6) for a, b in pairwise(edges))


def _losses(model: nn.Module, learn: LearnSettings, teacher: Teacher | None) -> Losses:
    """Raises BadSetting where a feature draft is to learn labels."""
    if not isinstance(model, FeatureDraft):
        return Losses(model, learn)
    assert teacher is not None
    if learn.loss == LABELS:
        reason = f"{model.kind} drafts learn distributions; choose forward_kl, reverse_kl, jsd or total_variation"
        raise BadSetting(source="settings", key="learn.loss", reason=reason)
    return FeatureLosses(model, learn, teacher.shared)
