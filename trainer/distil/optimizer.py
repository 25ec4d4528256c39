"""AdamW, its learning rate, and its moments.

A run online is short: a few dozen steps. A fresh AdamW has no estimate of scale, so its first steps move every weight
by the full step size whatever its gradient; begun anew each run, that is most of the run. So its moments are kept for
the run that continues from the version they led to. Measured on four domains, eight requests a run, this is worth more
than twice the passes. They are kept in the worker's memory only: after a restart they warm up again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from osd.models.features.base import FeatureDraft
from osd.models.lora.merging import ties
from storage.settings import LearnSettings
from storage.versions.feature_kinds import EAGLE, EAGLE3, MEDUSA, PEAGLE

WARMUP = 10
"""Warm-up steps of a fresh AdamW."""

FLOOR = 0.1
"""Share of the peak learning rate at which a linear schedule ends."""
RATE_TIMES_WIDTH = 0.4
"""Learning rate · hidden size where no rate is set: the wider the layers, the smaller a step may be."""
FIRST_RATE_TIMES_WIDTH = 0.8
"""The same for the first run of a draft of random weights, of a kind in :data:`FAST_AT_FIRST` (docs/features.md). A
draft that has learned loses by it."""
FAST_AT_FIRST = (MEDUSA, EAGLE, EAGLE3, PEAGLE)
"""Kinds that learn more by it; DFlash learns less."""
ADAPTER_RATE_TIMES_WIDTH = 1.0
"""The same for an adapter's B factors; its A factors take ``learn.lora_ratio`` times smaller steps."""
HEAD_FASTER = 2.0
"""Multiple of the learning rate for an adapter's factors at the output layer, where new words have furthest to go."""

Schedule = Literal["constant", "linear", "cosine"]
"""The schedule's shape.

``linear`` (down to a tenth in every run) is for a draft whose learning goes on: each run ends on weights that are
settled enough to serve. ``cosine`` (down to 0) is for training that ends.
"""
Moments = list[dict[str, Tensor]]
"""AdamW's state of each trained parameter, in order."""


def adamw(model: nn.Module, learn: LearnSettings, moments: Moments | None = None) -> torch.optim.AdamW:
    """Create AdamW over the model's trainable parameters, continuing from ``moments`` where they fit."""
    groups = _groups(model, learn)
    optimizer = torch.optim.AdamW(
        groups,
        lr=groups[0]["lr"],
        betas=(0.9, 0.99),
        weight_decay=learn.weight_decay,
        fused=True,
    )
    if moments is not None and _fit(moments, _parameters(optimizer)):
        resume(optimizer, moments)
    return optimizer


def first_learn(model: nn.Module, learn: LearnSettings) -> LearnSettings:
    """Return the settings of a first run of a draft of random weights: a higher rate, where none is set."""
    if learn.learning_rate or not isinstance(model, FeatureDraft) or model.kind not in FAST_AT_FIRST:
        return learn
    return learn.model_copy(update={"learning_rate": FIRST_RATE_TIMES_WIDTH / width(model)})


def resume(optimizer: torch.optim.AdamW, moments: Moments) -> None:
    """Replace the moments of an optimizer by those of one over the same parameters."""
    for parameter, state in zip(_parameters(optimizer), moments, strict=True):
        optimizer.state[parameter] = {name: _placed(tensor, parameter) for name, tensor in state.items()}


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _groups(model: nn.Module, learn: LearnSettings) -> list[dict[str, Any]]:
    """Return the parameter groups by learning rate: one, or an adapter's factors by kind."""
    pairs = ties(model)
    followers = {id(follower) for _, follower in pairs}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad and id(p) not in followers}
    if not any("lora_" in name for name in trained):
        return [{"params": list(trained.values()), "lr": learn.learning_rate or RATE_TIMES_WIDTH / width(model)}]
    rate = learn.learning_rate or ADAPTER_RATE_TIMES_WIDTH / width(model)
    head = {id(p) for p in cast(Any, model).get_output_embeddings().parameters()} | {id(leader) for leader, _ in pairs}
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        is_first = "lora_A" in name or "lora_embedding_B" in name  # an embedding's B is the output layer's A
        own = rate / (learn.lora_ratio if is_first else 1) * (HEAD_FASTER if id(parameter) in head else 1)
        groups.setdefault(own, []).append(parameter)
    return [{"params": some, "lr": own} for own, some in groups.items()]


def moments_of(optimizer: torch.optim.AdamW) -> Moments:
    """Copy the optimizer's moments to the CPU, whole."""
    states = [optimizer.state[parameter] for parameter in _parameters(optimizer)]
    return [{name: whole(tensor.detach()).cpu().clone() for name, tensor in state.items()} for state in states]


def scale(schedule: Schedule, done: int, steps: int) -> Callable[[int], float]:
    """Return the learning rate as a share of its peak, at each of a run's ``steps`` after ``done`` earlier ones."""

    def at(step: int) -> float:
        warm = min(1.0, (done + step + 1) / WARMUP)
        part = min(1.0, step / max(1, steps))  # texts drawn anew may make more steps than was expected
        falls = {"constant": 1.0, "linear": 1 - (1 - FLOOR) * part, "cosine": 0.5 * (1 + math.cos(math.pi * part))}
        return warm * falls[schedule]

    return at


def width(model: nn.Module) -> int:
    """Return the hidden size of a Hugging Face model, an adapter around it included."""
    config: Any = model.config
    return int(config.get_text_config().hidden_size)


def steps_done(optimizer: torch.optim.AdamW) -> int:
    """Return the number of steps that AdamW has taken, earlier runs included."""
    return max((int(state["step"]) for state in optimizer.state.values() if state), default=0)


def _fit(moments: Moments, trained: list[nn.Parameter]) -> bool:
    """Say whether moments belong to these parameters. One that got no gradient yet has none."""
    pairs = zip(moments, trained, strict=False)
    return len(moments) == len(trained) and all(not m or m["exp_avg"].shape == p.shape for m, p in pairs)


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor, which all processes call for; one that is in no shards as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _placed(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return a copy of what belongs to a parameter, on its device, and in shards as it is."""
    if isinstance(parameter, DTensor) and tensor.dim():
        return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
    return tensor.clone().to(parameter.device)
