"""Writes a model as a Hugging Face folder.

Weights are stored as they are in memory; config.json keeps the type in which the parent's were to be served.
:func:`stored_dtype` is that type.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel

WRITTEN = frozenset({"config.json", "generation_config.json", "osd.json", "READY", "README.md"})
"""Files of a parent's folder that a candidate does not inherit, having its own."""


def write_full(model: nn.Module, folder: Path, parent: Path) -> None:
    """Write a Hugging Face folder; other files than weights and configuration (the tokenizer) come from the
    parent's."""
    served = json.loads((parent / "config.json").read_text("utf-8")).get("dtype") if _has_config(parent) else None
    cast(PreTrainedModel, model).save_pretrained(folder)
    if served is not None:
        config = folder / "config.json"
        config.write_text(
            json.dumps(json.loads(config.read_text("utf-8")) | {"dtype": served}, indent=2) + "\n", "utf-8"
        )
    for path in parent.iterdir():
        inherited = path.is_file() and path.name not in WRITTEN and ".safetensors" not in path.name
        if inherited and not path.name.startswith(("adapter_", ".")):
            shutil.copyfile(path, folder / path.name)


def stored_dtype(folder: Path) -> torch.dtype:
    """Return the number type that a folder's config.json names; float32 where it names none."""
    facts = json.loads((folder / "config.json").read_text("utf-8")) if _has_config(folder) else {}
    found = getattr(torch, str(facts.get("dtype") or facts.get("torch_dtype")).removeprefix("torch."), torch.float32)
    return found if isinstance(found, torch.dtype) else torch.float32


def _has_config(folder: Path) -> bool:
    return (folder / "config.json").is_file()
