"""Reads a model's weights, and refuses files that are not whole: transformers draws what they lack at random.

A model is written as a Hugging Face folder with its weights as they are in memory; config.json keeps the type in which
the parent's were to be served (:func:`stored_dtype`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path
from threading import RLock
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.utils import logging as transformers_logging

from storage.errors import ModelNotLoaded
from storage.versions.feature_kinds import MTP_NAMES

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
CONFIG_MAPPING.register("mimo", Qwen2Config, exist_ok=True)  # a Qwen2 whose checkpoint has MTP heads
PreTrainedModel._keys_to_ignore_on_load_unexpected = [MTP_NAMES.pattern]  # which are a draft, and no part of the model
LOAD_ERRORS = (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError)
"""What transformers and safetensors raise when a folder does not hold a model they can read."""
NAMED = 3
"""Tensors that a sentence names."""
LOAD_LOCK = RLock()
"""Held while transformers or PEFT makes a model. Meanwhile they exchange functions that all models of the process
share, the tying of weights among them: of two at once the later would put back what the earlier had put there, and no
model would be tied ever after."""


def read_weights(name: str | Path, dtype: Any, device_map: Any = None) -> PreTrainedModel:
    """Load a causal or an encoder-decoder language model of which every parameter came from the files or from a tie: on
    the CPU, or where ``device_map`` says (accelerate's).

    ``dtype``: a torch.dtype, or ``auto`` for the files' own. Raises ModelNotLoaded.
    """
    try:
        kind: Any = auto_class(AutoConfig.from_pretrained(str(name), trust_remote_code=False))
        with LOAD_LOCK:
            both: Any = kind.from_pretrained(
                str(name), dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True,
                ignore_mismatched_sizes=True, device_map=device_map,
            )  # fmt: skip
    except Exception as error:  # whatever a folder of another's holds
        raise ModelNotLoaded(path=name, reason=first_line(error)) from None
    module: PreTrainedModel = both[0]
    if wrong := " ".join(chain(_differences(module, both[1]), _not_finite(module))):
        raise ModelNotLoaded(path=name, reason=wrong)
    return module


def auto_class(config: PreTrainedConfig) -> Any:
    """Return transformers' class that makes the language model of a configuration, if need be with the eyes that it
    has."""
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    sees = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM


def first_line(error: Exception) -> str:
    """Return the first line of an error's message as a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".") + "."


def _differences(module: Any, found: dict[str, Any]) -> Iterator[str]:
    """Yield what the files lack, what is of another shape, and what they have too much."""
    kind, missing = type(module).__name__, found["missing_keys"]
    if missing:
        yield f"The files lack {_named(missing)} of {kind}."
    if missing == {"lm_head.weight"}:
        yield "config.json does not tie the output layer to the embeddings (tie_word_embeddings), so it needs its own."
    for tensor, theirs, ours in sorted(found["mismatched_keys"]):
        yield f"{tensor} has shape {tuple(theirs)} in the files, and {tuple(ours)} by config.json."
    if too_much := found["unexpected_keys"]:
        yield f"The files hold {_named(too_much)}, which {kind} has not by this config.json."
    if found["error_msgs"]:
        yield f"{found['error_msgs'][0]}."


def _named(tensors: Collection[str]) -> str:
    """Name the first of some tensors, and count them."""
    more = f" and {len(tensors) - NAMED} more tensors" if len(tensors) > NAMED else ""
    return ", ".join(sorted(tensors)[:NAMED]) + more


def _not_finite(module: nn.Module) -> Iterator[str]:
    """Yield a sentence where weights are not finite; reads each once and copies nothing."""
    weights = ((name, each) for name, each in module.named_parameters() if each.dtype in FLOATS and each.numel())
    bad = [name for name, each in weights if not torch.stack(each.detach().aminmax()).isfinite().all()]
    if bad:
        yield f"The files hold numbers that are not finite, in {_named(bad)}."


def require_finite(module: nn.Module, path: str | Path) -> None:
    """Check that all weights which are floats are finite. Raises ModelNotLoaded."""
    if wrong := " ".join(_not_finite(module)):
        raise ModelNotLoaded(path=path, reason=wrong)


FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


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
