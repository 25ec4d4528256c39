"""MiMo's MTP head in a few lines, of a checkpoint's tensors and fields alone: a chain of drafted tokens, everything
computed anew for each. What osd's drafts, and vLLM's, are held against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from osd.models.features.mtp import MtpDraft
from osd.models.features.new import new_feature_draft
from osd.models.features.target import FeatureTarget
from tests.support.plain_eagle3 import _norm, _turned

BEFORE = "model.mtp_layers.0."


def random_head(target: FeatureTarget, seed: int = 4) -> MtpDraft:
    """An MTP head whose weights are random, norms and biases too."""
    draft: Any = new_feature_draft("mtp", target)
    generator = torch.Generator().manual_seed(seed)
    for weight in draft.parameters():
        drawn = torch.randn(weight.shape, generator=generator)
        weight.data = 1 + 0.3 * drawn if weight.dim() == 1 else 1.5 * drawn / weight.shape[1] ** 0.5
    return draft


def plain_chain(
    weights: Mapping[str, Tensor], facts: Mapping[str, Any], table: Tensor, head: Tensor, features: Tensor,
    tokens: list[int], steps: int,
) -> list[Tensor]:  # fmt: skip
    """Return logits (V,) of each step, after features (t + 1, H) of a text whose tokens from the second on are
    ``tokens``: the t + 1 that are known, and those drafted. ``table``, ``head``: embeddings and output layer."""
    own, found = features, list[Tensor]()
    for _ in range(steps):
        embedding = table[tokens[: len(own)]].clone()
        embedding[0] = 0
        last = _head(weights, facts, embedding, own)[-1]
        found.append(head @ last)
        own = torch.cat([own, last.unsqueeze(0)])
    return found


def _head(weights: Mapping[str, Tensor], facts: Mapping[str, Any], embedding: Tensor, hidden: Tensor) -> Tensor:
    eps, width, count = facts["rms_norm_eps"], facts["head_dim"], len(hidden)
    own = {name.removeprefix(BEFORE): value for name, value in weights.items()}

    def norm(name: str, read: Tensor) -> Tensor:
        return _norm(read, own[f"{name}_layernorm.weight"], eps)

    both = torch.cat([norm("hidden", hidden), norm("token", embedding)], dim=1)
    hidden = both @ own["input_proj.weight"].T
    read, groups = norm("input", hidden), facts["num_attention_heads"] // facts["num_key_value_heads"]
    query, key, value = (
        (read @ own[f"self_attn.{name}_proj.weight"].T + own[f"self_attn.{name}_proj.bias"])
        .view(count, -1, width).transpose(0, 1)
        for name in "qkv"
    )  # fmt: skip
    query, key = (_turned(each, torch.arange(count), facts["rope_parameters"]["rope_theta"]) for each in (query, key))
    scores = query @ key.repeat_interleave(groups, 0).transpose(1, 2) / width**0.5
    seen = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf).softmax(-1)
    attended = (seen @ value.repeat_interleave(groups, 0)).transpose(0, 1).reshape(count, -1)
    hidden = hidden + attended @ own["self_attn.o_proj.weight"].T
    inner = norm("post_attention", hidden)
    inner = F.silu(inner @ own["mlp.gate_proj.weight"].T) * (inner @ own["mlp.up_proj.weight"].T)
    return norm("final", hidden + inner @ own["mlp.down_proj.weight"].T)
