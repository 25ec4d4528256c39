"""What processes that distil together are given, and give back: JSON and safetensors in a folder. Samples are people's
texts and are not written there: they come as a line (Parquet in base64)."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from osd.models.lora.merging import quiet_peft
from osd.models.weights import auto_class
from storage.records import RequestSamples
from storage.replay.segments import decode, encode
from storage.settings import LearnSettings
from trainer.distil.optimizer import Moments

FACTS, WEIGHTS, MOMENTS = "task.json", "model.safetensors", "moments.safetensors"
MODEL, ADAPTER, TRAINED, TRAINED_MOMENTS = "model", "adapter", "trained.safetensors", "trained-moments.safetensors"


@dataclass(frozen=True, slots=True)
class RankTask:
    """What the processes are to do."""

    model: nn.Module
    learn: LearnSettings
    moments: Moments | None
    """Those of an optimizer that goes on; None for a fresh one."""
    shard: bool


def write_task(folder: Path, task: RankTask) -> None:
    """Write a task, whose model is on the CPU, into a folder."""
    base = cast(PreTrainedModel, task.model)
    if isinstance(task.model, PeftModel):
        base = cast(PreTrainedModel, task.model.get_base_model())
        task.model.peft_config["default"].save_pretrained(str(folder / ADAPTER))
    base.config.save_pretrained(folder / MODEL)
    save_model(task.model, str(folder / WEIGHTS))
    if task.moments is not None:
        save_moments(folder / MOMENTS, task.moments)
    facts = {
        "learn": task.learn.model_dump(mode="json"), "shard": task.shard,
        "attention": base.config._attn_implementation, "dtype": str(base.dtype).removeprefix("torch."),
    }  # fmt: skip
    (folder / FACTS).write_text(json.dumps(facts))


def read_task(folder: Path) -> RankTask:
    """Read a task; its model is on the CPU."""
    facts: dict[str, Any] = json.loads((folder / FACTS).read_text())
    config: Any = AutoConfig.from_pretrained(folder / MODEL)
    models = auto_class(config)
    made = models.from_config(config, attn_implementation=facts["attention"])
    model: nn.Module = made
    if (folder / ADAPTER).exists():
        with quiet_peft():
            model = get_peft_model(made, PeftConfig.from_pretrained(str(folder / ADAPTER)))
    model = model.to(getattr(torch, facts["dtype"]))
    load_model(model, str(folder / WEIGHTS))
    moments = load_moments(folder / MOMENTS) if (folder / MOMENTS).exists() else None
    return RankTask(model, LearnSettings.model_validate(facts["learn"]), moments, facts["shard"])


def pack(samples: Sequence[RequestSamples]) -> str:
    """Return samples as a line of JSON; those that stand beside one another with as many likeliest tokens as one."""
    groups = groupby(samples, key=lambda one: (one.k, one.weight))
    return json.dumps([(base64.b64encode(encode(list(group))).decode(), weight) for (_, weight), group in groups])


def unpack(line: str) -> list[RequestSamples]:
    """Return the samples of such a line."""
    return [
        replace(one, weight=weight)
        for group, weight in json.loads(line) for one in decode(BytesIO(base64.b64decode(group)))
    ]  # fmt: skip


def write_result(folder: Path, weights: dict[str, torch.Tensor], moments: Moments) -> None:
    """Write trained weights by name, and the optimizer's moments."""
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / TRAINED)
    save_moments(folder / TRAINED_MOMENTS, moments)


def read_result(folder: Path) -> tuple[dict[str, torch.Tensor], Moments]:
    """Read them."""
    return load_file(folder / TRAINED), load_moments(folder / TRAINED_MOMENTS)


def save_moments(path: Path, moments: Moments) -> None:
    """Write an optimizer's moments, numbered in the order in which it has them."""
    parts = [(number, place, *part) for number, state in enumerate(moments) for place, part in enumerate(state.items())]
    save_file({f"{number}.{place}.{name}": tensor.contiguous() for number, place, name, tensor in parts}, path)


def load_moments(path: Path) -> Moments:
    """Read them."""
    flat = load_file(path)
    keys = sorted((int(number), int(place), name) for number, place, name in (key.split(".", 2) for key in flat))
    found: Moments = [{} for _ in range(1 + max((number for number, *_ in keys), default=-1))]
    for number, place, name in keys:
        found[number][name] = flat[f"{number}.{place}.{name}"]
    return found
