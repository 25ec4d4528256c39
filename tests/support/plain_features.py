"""Plain feature drafts: a chain at one place, everything computed anew for each of its tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from osd.models.features.base import FeatureDraft
from osd.models.features.medusa import MedusaDraft
from osd.models.features.target import FeatureTarget


def plain_step(draft: FeatureDraft, target: FeatureTarget, features: Tensor, tokens: list[int], step: int) -> Tensor:
    """What the draft says in step ``step`` (V or Vd,), after features (t + 1, F) of a text whose tokens from the second
    on are ``tokens``: the t + 1 that are known, and ``step`` that were drafted."""
    if isinstance(draft, MedusaDraft):
        return draft.head_logits(features[-1], step, target.head)
    own = list(draft.begin(features))
    for count in range(step + 1):
        hidden = _layer(draft, torch.stack(own), target.embed(torch.tensor(tokens[: len(own)])))[-1]
        if count < step:
            own.append(hidden)
    return draft.logits(draft.norm_out(hidden), target.head)


def _layer(draft: Any, hidden: Tensor, embedding: Tensor) -> Tensor:
    """One decoder layer over columns (T, H), each of which sees all before it and itself."""
    entered, residual = draft.enter(embedding, hidden)
    parts, count = draft.layer.self_attn, len(hidden)
    heads, width = parts.q_proj.weight.shape[0] // parts.head_dim, parts.head_dim
    query, key, value = (each(entered).view(count, -1, width) for each in (parts.q_proj, parts.k_proj, parts.v_proj))
    cos, sin = (each[0].unsqueeze(1) for each in draft.rotary(entered, torch.arange(count).unsqueeze(0)))
    query, key = _turned(query, cos, sin), _turned(key, cos, sin)
    seen = torch.zeros(count, heads, width)
    for column in range(count):
        for head in range(heads):
            shared = head // parts.num_key_value_groups
            scores = key[: column + 1, shared] @ query[column, head] / math.sqrt(width)
            seen[column, head] = scores.softmax(0) @ value[: column + 1, shared]
    hidden = residual + parts.o_proj(seen.view(count, -1))
    return hidden + draft.layer.mlp(draft.layer.post_attention_layernorm(hidden))


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin
