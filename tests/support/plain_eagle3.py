"""EAGLE-3 and EAGLE-3.1 in a few lines, of a folder's tensors and fields alone: a chain of drafted tokens, everything
computed anew for each. What osd's drafts, and vLLM's, are held against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from osd.models.features.eagle import Eagle3Draft
from osd.models.features.new import new_feature_draft
from osd.models.features.target import FeatureTarget

VARIANTS: dict[str, dict[str, Any]] = {
    "3": {},
    "norm_output": {"norm_output": True},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "window": {"layer_types": ["sliding_attention"], "sliding_window": 3},
    "all": {
        "norm_output": True, "norm_before_residual": True, "norm_before_fc": True, "fc_norm": True,
        "layer_types": ["sliding_attention"], "sliding_window": 2,
    },
}  # fmt: skip
"""Fields of config.json, each on with the others off, and all on."""


def random_eagle3(target: FeatureTarget, variant: str, token_map: list[int] | None = None) -> Eagle3Draft:
    """An EAGLE-3 draft with these fields, whose weights are random, norms too."""
    config = new_feature_draft("eagle3", target, token_map=token_map).config
    config.update(VARIANTS[variant])
    draft = Eagle3Draft(config, None if token_map is None else torch.tensor(token_map))
    generator = torch.Generator().manual_seed(4)
    for weight in draft.parameters():
        drawn = torch.randn(weight.shape, generator=generator)
        weight.data = 1 + 0.3 * drawn if weight.dim() == 1 else 1.5 * drawn / weight.shape[1] ** 0.5
    return draft.eval().requires_grad_(False)


def plain_chain(
    weights: Mapping[str, Tensor], facts: Mapping[str, Any], table: Tensor, head: Tensor, features: Tensor,
    tokens: list[int], steps: int,
) -> list[Tensor]:  # fmt: skip
    """Return logits (Vd,) of each step, after features (t + 1, F) of a text whose tokens from the second on are
    ``tokens``: the t + 1 that are known, and those drafted. ``table``, ``head``: embeddings and output layer."""
    eps, found = facts["rms_norm_eps"], list[Tensor]()
    if facts.get("norm_before_fc"):
        features = _norm(features, weights["input_norm.weight"], eps)
    if facts.get("fc_norm"):
        width = weights["fc_norm.0.weight"].shape[0]
        parts = [features[:, at : at + width] for at in range(0, features.shape[1], width)]
        normed = [_norm(part, weights[f"fc_norm.{i}.weight"], eps) for i, part in enumerate(parts)]
        features = torch.cat(normed, dim=1)
    own = features @ weights["fc.weight"].T
    for _ in range(steps):
        last = _layer(weights, facts, table[tokens[: len(own)]], own)[-1]
        normed = _norm(last, weights["norm.weight"], eps)
        found.append(head @ normed)
        own = torch.cat([own, (normed if facts.get("norm_output") else last).unsqueeze(0)])
    return found


def _layer(weights: Mapping[str, Tensor], facts: Mapping[str, Any], embedding: Tensor, hidden: Tensor) -> Tensor:
    eps, width = facts["rms_norm_eps"], facts["head_dim"]
    own = {name.removeprefix("midlayer."): value for name, value in weights.items() if name.startswith("midlayer.")}
    normed = _norm(hidden, own["hidden_norm.weight"], eps)
    read = torch.cat([_norm(embedding, own["input_layernorm.weight"], eps), normed], dim=1)
    places, groups = torch.arange(len(hidden)), facts["num_attention_heads"] // facts["num_key_value_heads"]
    query, key, value = (
        (read @ own[f"self_attn.{name}_proj.weight"].T).view(len(hidden), -1, width).transpose(0, 1) for name in "qkv"
    )
    query, key = (_turned(each, places, facts["rope_parameters"]["rope_theta"]) for each in (query, key))
    scores = query @ key.repeat_interleave(groups, 0).transpose(1, 2) / width**0.5
    back = places.unsqueeze(1) - places
    window = facts["sliding_window"] if facts.get("layer_types") == ["sliding_attention"] else len(hidden)
    seen = scores.masked_fill((back < 0) | (back >= window), -torch.inf).softmax(-1)
    attended = (seen @ value.repeat_interleave(groups, 0)).transpose(0, 1).reshape(len(hidden), -1)
    hidden = (normed if facts.get("norm_before_residual") else hidden) + attended @ own["self_attn.o_proj.weight"].T
    inner = _norm(hidden, own["post_attention_layernorm.weight"], eps)
    inner = F.silu(inner @ own["mlp.gate_proj.weight"].T) * (inner @ own["mlp.up_proj.weight"].T)
    return hidden + inner @ own["mlp.down_proj.weight"].T


def _norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    return hidden / (hidden.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _turned(heads: Tensor, places: Tensor, theta: float) -> Tensor:
    width = heads.shape[-1]
    turns = places.unsqueeze(1) * theta ** (-torch.arange(0, width, 2) / width)
    one, other = heads.chunk(2, dim=-1)
    return torch.cat([one * turns.cos() - other * turns.sin(), other * turns.cos() + one * turns.sin()], dim=-1)
