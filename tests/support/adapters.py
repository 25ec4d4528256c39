"""Random LoRA adapters, written by PEFT itself, and drafts that are let into an engine without a store."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from osd.drafters.residency import LoadedVersion
from osd.engine.engine import Engine
from osd.hotswap.loader import weight_bytes
from osd.models.decoder import lay_out
from osd.models.lora.adapter import Adapter, read_adapter, sizes_of
from osd.models.model import Model

CPU = torch.device("cpu")
LINEAR = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "qwen3": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "opt": ["q_proj", "v_proj", "out_proj", "fc1", "fc2"],
    "gpt_neox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
}
EMBEDDINGS = {"llama": ["lm_head", "embed_tokens"], "qwen3": ["lm_head", "embed_tokens"], "gpt2": ["lm_head", "wte"]}


def adapt(module: Any, config: LoraConfig, seed: int = 0, size: float = 0.2) -> PeftModel:
    """A random adapter over a copy of the module: one that says something, unlike PEFT's new ones."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # tied weights: PEFT warns of merging them, which osd.models.lora.merging sees to
        adapted = get_peft_model(copy.deepcopy(module), config)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            with torch.no_grad():
                weight.copy_(torch.randn(weight.shape, generator=generator) * size)
    return adapted.eval()


def lora(targets: list[str], rank: int = 4, **more: Any) -> LoraConfig:
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM", **more)


def save(adapted: PeftModel, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted.save_pretrained(str(folder), save_embedding_layers=False)
    return folder


def read(folder: Path, model: Model, version: str = "a") -> Adapter:
    sizes = sizes_of(model.module)
    parts = read_adapter(folder, version, sizes, "digest", CPU, torch.float32)
    return lay_out(model.build, parts, sizes)


def let_in(engine: Engine, name: str, model: Model | None = None, adapter: Adapter | None = None) -> str:
    """A draft for the engine: its own weights, or an adapter over the default draft's."""
    arrival = LoadedVersion(name, f"{name}-v1", 256, base="base" if model is None else None, adapter=adapter)
    if model is None:
        engine.pool.default.body.base = "base"
    else:
        decoder = model.decoder(1, engine.pool.decoder.cache.length)
        arrival = LoadedVersion(name, f"{name}-v1", model.limit, None, decoder, weight_bytes(model.module))
    return engine.draft_manager.residence.let_in(arrival)
