"""Plain feature drafts: a chain at one place, everything computed anew for each of its tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from osd.models.features.base import FeatureDraft
from osd.models.features.dflash import DFlashDraft
from osd.models.features.medusa import MedusaDraft
from osd.models.features.peagle import PEagleDraft
from osd.models.features.target import FeatureTarget


def plain_step(draft: FeatureDraft, target: FeatureTarget, features: Tensor, tokens: list[int], step: int) -> Tensor:
    """What the draft says in step ``step`` (V or Vd,), after features (t + 1, F) of a text whose tokens from the second
    on are ``tokens``: the t + 1 that are known, and ``step`` that were drafted."""
    if isinstance(draft, MedusaDraft):
        return draft.head_logits(features[-1], step, target.head)
    if isinstance(draft, DFlashDraft):
        return draft.logits(_block(draft, target, features, tokens[len(features) - 1])[step + 1], target.head)
    if isinstance(draft, PEagleDraft):
        return draft.logits(draft.norm_out(draft.leave(_masked(draft, target, features, tokens, step))), target.head)
    own = list(draft.begin(features))
    for count in range(step + 1):
        embedding = target.embed(torch.tensor(tokens[: len(own)]))
        if draft.kind == "mtp":  # which is shown no token in the first column, and goes on from what its norm gives
            embedding = torch.cat([torch.zeros_like(embedding[:1]), embedding[1:]])
        hidden = _layer(draft, torch.stack(own), embedding)[-1]
        if draft.kind == "mtp":
            hidden = draft.final_layernorm(hidden)
        if count < step:
            own.append(hidden)
    return draft.logits(draft.norm_out(hidden), target.head)


def _masked(draft: PEagleDraft, target: FeatureTarget, features: Tensor, tokens: list[int], step: int) -> Tensor:
    """P-EAGLE's output (H,) at the last of ``step`` masked columns behind the known ones."""
    ids = [*tokens[: len(features)], *[draft.config.mask_token_id] * step]
    hidden = torch.cat([draft.begin(features), draft.begin(draft.mask_hidden[0]).expand(step, -1)])
    hidden = _layer(draft, hidden, draft.embedded(target.embed)(torch.tensor(ids)))
    for layer in draft.layers[1:]:
        read = layer.input_layernorm(hidden)
        hidden = _finished(layer, hidden, _attended(layer.self_attn, draft.rotary, read, read, 0))
    return hidden[-1]


def _block(draft: DFlashDraft, target: FeatureTarget, features: Tensor, anchor: int) -> Tensor:
    """DFlash's output (K + 1, H) over the block that begins with a token, behind the text's features."""
    context, count = draft.hidden_norm(draft.fc(features)), len(features)
    hidden = target.embed(torch.tensor([anchor, *[draft.config.mask_token_id] * (draft.config.block_size - 1)]))
    for layer, looks_back in zip(draft.layers, draft.looks_back, strict=True):
        read = layer.input_layernorm(hidden)
        seen = _attended(
            layer.self_attn, draft.rotary, read, torch.cat([context, read]), count, everything=not looks_back
        )
        hidden = _finished(layer, hidden, seen)
    return draft.norm(hidden)


def _layer(draft: Any, hidden: Tensor, embedding: Tensor) -> Tensor:
    """One decoder layer over columns (T, H), each of which sees all before it and itself."""
    entered, residual = draft.enter(embedding, hidden)
    return _finished(draft.layer, residual, _attended(draft.layer.self_attn, draft.rotary, entered, entered, 0))


def _finished(layer: Any, residual: Tensor, attended: Tensor) -> Tensor:
    hidden = residual + attended
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def _attended(
    parts: Any, rotary: Any, asks: Tensor, read: Tensor, first: int, *, everything: bool = False
) -> Tensor:  # fmt: skip
    """What columns (C, D) from ``first`` on see of all columns (T, D): those up to their own, or ``everything``, but
    for what a window leaves out."""
    width, heads = parts.head_dim, parts.q_proj.weight.shape[0] // parts.head_dim
    query, key, value = (
        product(each).view(len(each), -1, width)
        for product, each in ((parts.q_proj, asks), (parts.k_proj, read), (parts.v_proj, read))
    )
    if hasattr(parts, "q_norm"):
        query, key = parts.q_norm(query), parts.k_norm(key)
    cos, sin = (each[0].unsqueeze(1) for each in rotary(read, torch.arange(len(read)).unsqueeze(0)))
    query, key = _turned(query, cos[first:], sin[first:]), _turned(key, cos, sin)
    seen = torch.zeros(len(asks), heads, width)
    for column in range(len(asks)):
        begin = max(0, first + column + 1 - (parts.sliding_window or len(read) + first))
        end = len(read) if everything else first + column + 1
        for head in range(heads):
            shared = head // parts.num_key_value_groups
            scores = key[begin:end, shared] @ query[column, head] / math.sqrt(width)
            seen[column, head] = scores.softmax(0) @ value[begin:end, shared]
    return parts.o_proj(seen.view(len(asks), -1))


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin
