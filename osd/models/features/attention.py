"""Attention of a draft that is unrolled over whole texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv


class UnrolledAttention:
    """Attention of one layer, step after step: a column sees the first step's columns up to its own, and of the later
    steps its own column. So T queries of a step stand for T chains that were drafted at T places."""

    def __init__(self, layer: Any, rotary: Any) -> None:
        """``layer``: a decoder layer of Llama's kind; ``rotary``: its rotary positions."""
        self._parts, self._rotary = layer.self_attn, rotary
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, entered: Tensor, step: int) -> Tensor:
        """Compute (B, T, H) from what attention reads, (B, T, D), at positions t + ``step``."""
        (rows, width, _), parts = entered.shape, self._parts
        shape = rows, width, -1, parts.head_dim
        query, key, value = (
            product(entered).view(shape).transpose(1, 2) for product in (parts.q_proj, parts.k_proj, parts.v_proj)
        )
        positions = torch.arange(step, step + width, device=entered.device).unsqueeze(0)
        query, key = apply_rotary_pos_emb(query, key, *self._rotary(entered, positions))
        self._keys.append(repeat_kv(key, parts.num_key_value_groups))
        self._values.append(repeat_kv(value, parts.num_key_value_groups))
        seen = self._attend(query).transpose(1, 2).reshape(rows, width, -1)
        out: Tensor = parts.o_proj(seen)
        return out

    def _attend(self, query: Tensor) -> Tensor:
        """Return what queries (B, heads, T, head_dim) see, of the same shape."""
        scale, width = self._parts.scaling, query.shape[2]
        first = query @ self._keys[0].transpose(2, 3) * scale
        ahead = torch.ones(width, width, dtype=torch.bool, device=query.device).triu(1)
        own = [(query * key).sum(-1, keepdim=True) * scale for key in self._keys[1:]]
        scores = torch.cat([first.masked_fill(ahead, -torch.inf), *own], dim=-1)
        weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        seen = weights[..., :width] @ self._values[0]
        for i, value in enumerate(self._values[1:]):
            seen = seen + weights[..., width + i : width + i + 1] * value
        return seen
