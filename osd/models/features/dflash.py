"""DFlash: a block of masked positions that a few layers fill in one pass (block diffusion; DFlash, arXiv 2602.06036).

Every layer reads keys and values of the text out of the target's hidden states, norm(fc(features)), a column of them at
its own position; the text itself is never embedded. A block is the newest token, which the target has not read yet, and
as many masked positions after it. They see the text and one another, and what stands at the k-th mask, from 1, is the
draft's k-th token: its distribution rests on no other drafted token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3Config
from transformers.models.llama.modeling_llama import repeat_kv, rotate_half
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding

from osd.models.features.base import AHEAD, FeatureDraft, Unrolled, shifted
from osd.models.features.target import Embed, OutputHead

TOGETHER = 64
"""Blocks of a row that attend together while a draft learns or is scored: a bound on memory where nothing is kept for
gradients."""


class DFlashDraft(FeatureDraft):
    """Layers of Qwen3's kind that fill a block."""

    kind = "dflash"
    at_once = True

    def __init__(self, config: Qwen3Config, token_map: Tensor | None = None, *, own_head: bool = False) -> None:
        """``own_head``: it has an output layer of its own, over what it can propose."""
        super().__init__(config, token_map)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(self.feature_size, size, bias=False)
        self.hidden_norm, self.norm = (Qwen3RMSNorm(size, eps=eps) for _ in range(2))
        self.layers = nn.ModuleList([Qwen3DecoderLayer(config, i) for i in range(config.num_hidden_layers)])
        self.rotary = Qwen3RotaryEmbedding(config)
        self.own_output_layer(own_head)

    def feature_layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        """See :meth:`osd.models.features.base.FeatureDraft.feature_layers`: DFlash counts from a layer's output."""
        return self.read_layers

    @property
    def read_layers(self) -> tuple[int, ...]:
        """The numbers of the hidden states that it reads."""
        return tuple(int(each) + 1 for each in self.config.target_layer_ids)

    @property
    def feature_size(self) -> int:
        """Width F of what it reads at a column."""
        return len(self.config.target_layer_ids) * self.hidden_size

    @property
    def masks(self) -> int:
        """K: masked positions of a block, and so the tokens that it drafts."""
        return int(self.config.block_size) - 1

    @property
    def looks_back(self) -> list[bool]:
        """By layer, whether a block's positions see none that come after them."""
        said = [getattr(self.config, name, None) for name in ("is_causal", "causal")]
        slides = [each == "sliding_attention" for each in self.config.layer_types]
        return next(([bool(each)] * len(slides) for each in said if each is not None), slides)

    def context(self, features: Tensor) -> Tensor:
        """Return what every layer's keys and values of the text are computed from, (…, H), of features (…, F)."""
        normed: Tensor = self.hidden_norm(self.fc(features))
        return normed

    def block(self, anchors: Tensor, embed: Embed) -> Tensor:
        """Return the embeddings (…, K + 1, H) of blocks that begin with tokens (…)."""
        masks = anchors.new_full((*anchors.shape, self.masks), self.mask_token)
        return embed(torch.cat([anchors.unsqueeze(-1), masks], dim=-1)).to(self.fc.weight.dtype)

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, head: OutputHead, steps: int, first: int = 0
    ) -> list[Unrolled]:
        """Compute the first ``steps`` tokens of a block at every column from ``first`` on; see
        :meth:`osd.models.features.base.FeatureDraft.unroll`. Blocks are whole, as they are when they serve."""
        context, hidden = self.context(features), self.block(shifted(tokens, 1)[:, first:], embed)
        turns = self.rotary(context, torch.arange(tokens.shape[1] + self.masks + 1, device=context.device).unsqueeze(0))
        for layer, looks_back in zip(self.layers, self.looks_back, strict=True):
            hidden = _layer(layer, hidden, context, _Places(turns, first, looks_back))
        hidden = self.norm(hidden[:, :, 1 : steps + 1])
        return [Unrolled(self.logits(each, head), step + AHEAD, None) for step, each in enumerate(hidden.unbind(2))]


class _Places:
    """Where C blocks of K + 1 positions stand: the c-th begins at ``first`` + c + 1, behind the column that it is
    drafted at."""

    def __init__(self, turns: tuple[Tensor, Tensor], first: int, looks_back: bool) -> None:
        """``turns``: rotary tables (1, T + K + 1, head_dim)."""
        self._cos, self._sin = (table[0] for table in turns)
        self._first, self._looks_back = first, looks_back

    def turned(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Turn heads (B, heads, …, head_dim) by their positions (…)."""
        found: Tensor = heads * self._cos[positions] + rotate_half(heads) * self._sin[positions]  # type: ignore[no-untyped-call]
        return found

    def of_blocks(self, count: int, size: int) -> Tensor:
        """Return positions (count, size)."""
        device = self._cos.device
        return self._first + 1 + torch.arange(count, device=device).unsqueeze(1) + torch.arange(size, device=device)

    def unseen(self, blocks: Tensor, columns: int, window: int | None) -> Tensor:
        """Return which of the text's columns and of its own block, (c, size, T + size), no query of ``blocks`` (c,
        size) sees."""
        keys, size = torch.arange(columns, device=blocks.device), blocks.shape[1]
        text = (keys >= blocks[:, :1]).unsqueeze(1).expand(-1, size, -1)
        own = torch.ones(size, size, dtype=torch.bool, device=blocks.device).triu(1) & self._looks_back
        unseen = torch.cat([text, own.expand(len(blocks), -1, -1)], dim=2)
        if window is None:
            return unseen
        back = torch.cat([keys.expand(len(blocks), -1), blocks], dim=1).unsqueeze(1)
        return unseen | (back <= blocks.unsqueeze(2) - window)


def _layer(layer: Any, hidden: Tensor, context: Tensor, places: _Places) -> Tensor:
    """Compute a layer over C blocks, (B, C, K + 1, H), of rows whose text it reads from ``context`` (B, T, H)."""
    parts, read = layer.self_attn, layer.input_layernorm(hidden)
    blocks = places.of_blocks(*hidden.shape[1:3])

    def heads(product: Any, norm: Any, inputs: Tensor) -> Tensor:
        found: Tensor = norm(product(inputs).unflatten(-1, (-1, parts.head_dim))).movedim(-2, 1)
        return found

    columns = torch.arange(context.shape[1], device=context.device)
    query = places.turned(heads(parts.q_proj, parts.q_norm, read), blocks)
    text, own = (heads(parts.k_proj, parts.k_norm, each) for each in (context, read))
    keys = places.turned(text, columns), places.turned(own, blocks)
    values = [heads(parts.v_proj, nn.Identity(), each) for each in (context, read)]
    seen = [
        _attend(parts, query[:, :, at], keys[0], values[0], keys[1][:, :, at], values[1][:, :, at],
                places.unseen(blocks[at], len(columns), parts.sliding_window))
        for at in (slice(begin, begin + TOGETHER) for begin in range(0, len(blocks), TOGETHER))
    ]  # fmt: skip
    hidden = hidden + parts.o_proj(torch.cat(seen, dim=2).movedim(1, -2).flatten(-2))
    found: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return found


def _attend(
    parts: Any, query: Tensor, text_keys: Tensor, text_values: Tensor, keys: Tensor, values: Tensor, unseen: Tensor
) -> Tensor:
    """Return what queries (B, heads, c, S, head_dim) see of the text, (B, kv heads, T, head_dim), and of their own
    blocks, (B, kv heads, c, S, head_dim)."""
    groups, width = parts.num_key_value_groups, text_keys.shape[2]
    text_keys, text_values = (repeat_kv(each, groups) for each in (text_keys, text_values))
    keys, values = (each.repeat_interleave(groups, 1) for each in (keys, values))
    text = (query.flatten(2, 3) @ text_keys.transpose(2, 3)).view(*query.shape[:4], width)
    scores = torch.cat([text, query @ keys.transpose(3, 4)], dim=-1) * parts.scaling
    weights = scores.masked_fill(unseen, -torch.inf).softmax(-1, dtype=torch.float32).to(query.dtype)
    text = (weights[..., :width].flatten(2, 3) @ text_values).view(query.shape)
    found: Tensor = text + weights[..., width:] @ values
    return found
