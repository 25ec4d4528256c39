"""Attention of a draft that is unrolled over whole texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv


class UnrolledAttention:
    """Attention of one layer, step after step: a column sees the first step's columns up to its own, and of the later
    steps its own column. So C queries of a step stand for C chains that were drafted at C places."""

    def __init__(self, layer: Any, rotary: Any) -> None:
        """``layer``: a decoder layer of Llama's kind; ``rotary``: its rotary positions."""
        self._parts, self._rotary = layer.self_attn, rotary
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, entered: Tensor, step: int, first: int = 0) -> Tensor:
        """Return what attention gives, (B, C, H), at the C columns from ``first`` on. ``entered``: what it reads,
        (B, T, D) in step 0, later (B, C, D). Column t stands at position t + ``step``."""
        (rows, width, _), parts = entered.shape, self._parts
        begin = step + (first if step else 0)
        asked = entered if step else entered[:, first:]
        query, key, value = (
            product(read).view(rows, read.shape[1], -1, parts.head_dim).transpose(1, 2)
            for product, read in ((parts.q_proj, asked), (parts.k_proj, entered), (parts.v_proj, entered))
        )
        positions = torch.arange(begin, begin + width, device=entered.device).unsqueeze(0)
        cos, sin = self._rotary(entered, positions)
        late = width - asked.shape[1]
        query, _ = apply_rotary_pos_emb(query, query, cos[:, late:], sin[:, late:])
        _, key = apply_rotary_pos_emb(key, key, cos, sin)
        self._keys.append(repeat_kv(key, parts.num_key_value_groups))
        self._values.append(repeat_kv(value, parts.num_key_value_groups))
        seen = self._attend(query).transpose(1, 2).reshape(rows, asked.shape[1], -1)
        out: Tensor = parts.o_proj(seen)
        return out

    def _attend(self, query: Tensor) -> Tensor:
        """Return what queries (B, heads, C, head_dim) see, of the same shape."""
        scale, width = self._parts.scaling, self._keys[0].shape[2]
        first = query @ self._keys[0].transpose(2, 3) * scale
        late = width - query.shape[2]
        ahead = torch.ones(query.shape[2], width, dtype=torch.bool, device=query.device).triu(1 + late)
        own = [(query * key).sum(-1, keepdim=True) * scale for key in self._keys[1:]]
        scores = torch.cat([first.masked_fill(ahead, -torch.inf), *own], dim=-1)
        weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        seen = weights[..., :width] @ self._values[0]
        for i, value in enumerate(self._values[1:]):
            seen = seen + weights[..., width + i : width + i + 1] * value
        return seen
