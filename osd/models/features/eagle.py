"""EAGLE: one decoder layer over the target's last feature and the next token's embedding, then over its own features.

The layer reads fc(embedding of token t + 1 ; feature t); its output is the feature of t + 1, from which the target's
output layer predicts token t + 2 (EAGLE, Section 4.1). The layer has no norm of its input, and none follows it.

EAGLE-3 reads hidden states of three depths, and its own features need not be like the target's: fc mixes the three
into a first feature; the layer's attention reads the norm of the next token's embedding and the norm of the feature,
side by side, and a norm stands before the output layer (EAGLE-3, Section 3.1). EAGLE-3.1 may norm the hidden states
before fc, all as one (``norm_before_fc``) or each alone (``fc_norm``), and goes on from the features that the last norm
made (``norm_output``). Any draft's layer may see a window of the last positions alone (``sliding_window``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    repeat_kv,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from osd.models.features.base import AHEAD, FeatureDraft, Unrolled, shifted
from osd.models.features.target import Embed, OutputHead

LAYERS: dict[str, Any] = {"llama": LlamaDecoderLayer, "qwen3": Qwen3DecoderLayer}
"""What a draft's layers may be, by ``model_type``; Qwen3's norm each head's query and key."""


class EagleDraft(FeatureDraft):
    """One decoder layer that runs on its own features; P-EAGLE's, several."""

    kind = "eagle"

    def __init__(self, config: LlamaConfig, token_map: Tensor | None = None) -> None:
        super().__init__(config, token_map)
        self.fc = nn.Linear(self._entry_size, config.hidden_size, bias=bool(getattr(config, "bias", False)))
        further = [LAYERS[config.model_type](config, i) for i in range(1, self._size)]
        self.layers = nn.ModuleList([self._layer(config), *further])
        types = getattr(config, "layer_types", None) or ["full_attention"] * len(self.layers)
        for layer, each in zip(self.layers, types, strict=True):
            _narrow(layer.self_attn, config.sliding_window if each == "sliding_attention" else None)
        self.rotary = LlamaRotaryEmbedding(config)

    @property
    def _size(self) -> int:
        """How many layers it has."""
        return int(self.config.num_hidden_layers)

    @property
    def _entry_size(self) -> int:
        """Width of what ``fc`` reads."""
        return 2 * self.hidden_size

    def _layer(self, config: LlamaConfig) -> nn.Module:
        layer: Any = LlamaDecoderLayer(config, 0)
        layer.input_layernorm = nn.Identity()
        made: nn.Module = layer
        return made

    @property
    def layer(self) -> Any:
        """The decoder layer."""
        return self.layers[0]

    # the parts of a pass, which serving and learning share

    def begin(self, features: Tensor) -> Tensor:
        """Return the target's features (…, F) as the draft's own, (…, H)."""
        return features

    def enter(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return what attention reads, (…, D), and the residual stream, (…, H), from a token's embedding and the
        feature before it, (…, H) each."""
        mixed = self.fc(torch.cat([embedding, hidden], dim=-1))
        return mixed, mixed

    def shown(self, embedding: Tensor, positions: Tensor) -> Tensor:
        """Return what it is shown of embeddings (…, H) in columns at these positions (…,)."""
        return embedding

    def leave(self, hidden: Tensor) -> Tensor:
        """Return the next feature, (…, H), of the layer's output."""
        return hidden

    def norm_out(self, hidden: Tensor) -> Tensor:
        """Return what the output layer reads, (…, H), of the next feature."""
        return hidden

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, head: OutputHead, steps: int, first: int = 0
    ) -> list[Unrolled]:
        """Compute ``steps`` steps; see :meth:`osd.models.features.base.FeatureDraft.unroll`. In step k column t sees
        the first step's columns up to t, and the later steps' column t alone: the chain that is drafted there."""
        attention, hidden, found = UnrolledAttention(self.layer, self.rotary), self.begin(features), []
        for step in range(steps):
            before = first if step else 0
            embedding = embed(shifted(tokens, step + 1)[:, before:]).to(hidden.dtype)
            positions = torch.arange(before + step, tokens.shape[1] + step, device=tokens.device)
            entered, residual = self.enter(self.shown(embedding, positions), hidden)
            hidden = residual[:, first - before :] + attention(entered, step, first)
            hidden = self.leave(hidden + self.layer.mlp(self.layer.post_attention_layernorm(hidden)))
            found.append(Unrolled(self.logits(self.norm_out(hidden), head), step + AHEAD, hidden))
        return found


def _as_it_is(heads: Tensor) -> Tensor:
    return heads


def _narrow(attention: Any, window: int | None) -> None:
    """Let a layer see so many positions, None for all."""
    attention.sliding_window = window


def depths(layers: int) -> tuple[int, ...]:
    """Return the hidden states that are read of a target of so many layers: an early, a middle and a late one."""
    usual = (2, layers // 2, layers - 3)
    if usual[0] < usual[1] < usual[2]:
        return usual
    return tuple(range(layers - 3, layers)) if layers >= 3 else tuple(range(layers + 1))


class Eagle3Draft(EagleDraft):
    """One decoder layer over several hidden states of the target."""

    kind = "eagle3"

    def __init__(self, config: LlamaConfig, token_map: Tensor | None = None, *, own_head: bool = False) -> None:
        """``own_head``: it has an output layer of its own, over what it can propose."""
        super().__init__(config, token_map)
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        size, eps = self._entry_size, config.rms_norm_eps
        norms_all, norms_each = (getattr(config, name, False) for name in ("norm_before_fc", "fc_norm"))
        self.input_norm = LlamaRMSNorm(size, eps=eps) if norms_all else nn.Identity()
        states = len(self.read_layers) if norms_each else 0
        self.fc_norm = nn.ModuleList([LlamaRMSNorm(size // states, eps=eps) for _ in range(states)])
        self.own_output_layer(own_head)

    @property
    def read_layers(self) -> tuple[int, ...]:
        """The numbers of the hidden states that it reads."""
        return tuple(int(each) for each in self.config.eagle_aux_hidden_state_layer_ids)

    def feature_layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        """See :meth:`osd.models.features.base.FeatureDraft.feature_layers`."""
        return self.read_layers

    @property
    def feature_size(self) -> int:
        """Width F of what it reads at a column."""
        return self._entry_size

    @property
    def _entry_size(self) -> int:
        return len(self.read_layers) * int(getattr(self.config, "target_hidden_size", None) or self.hidden_size)

    def _layer(self, config: LlamaConfig) -> nn.Module:
        layer, attention = LAYERS[config.model_type](config, 0), config.attention_bias
        layer.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            size = getattr(layer.self_attn, name).weight.shape[0]
            setattr(layer.self_attn, name, nn.Linear(2 * config.hidden_size, size, bias=attention))
        made: nn.Module = layer
        return made

    def begin(self, features: Tensor) -> Tensor:
        """Mix the target's hidden states (…, F) into a first feature (…, H)."""
        features = self.input_norm(features)
        if len(self.fc_norm):
            states = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([norm(state) for norm, state in zip(self.fc_norm, states, strict=True)], dim=-1)
        mixed: Tensor = self.fc(features)
        return mixed

    def enter(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`osd.models.features.eagle.EagleDraft.enter`."""
        layer = self.layer
        normed = layer.hidden_norm(hidden)
        residual = normed if getattr(self.config, "norm_before_residual", False) else hidden
        return torch.cat([layer.input_layernorm(embedding), normed], dim=-1), residual

    @property
    def _goes_on_normed(self) -> bool:
        """Whether its own features are those behind the last norm (EAGLE-3.1)."""
        return bool(getattr(self.config, "norm_output", False))

    def leave(self, hidden: Tensor) -> Tensor:
        """See :meth:`osd.models.features.eagle.EagleDraft.leave`."""
        return self._normed(hidden) if self._goes_on_normed else hidden

    def norm_out(self, hidden: Tensor) -> Tensor:
        """See :meth:`osd.models.features.eagle.EagleDraft.norm_out`."""
        return hidden if self._goes_on_normed else self._normed(hidden)

    def _normed(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.norm(hidden)
        return normed


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
        normed = ("q_norm", parts.q_proj, asked), ("k_norm", parts.k_proj, entered), ("", parts.v_proj, entered)
        query, key, value = (
            getattr(parts, norm, _as_it_is)(product(read).view(rows, read.shape[1], -1, parts.head_dim)).transpose(1, 2)
            for norm, product, read in normed
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
        own = [(query * key).sum(-1, keepdim=True) * scale for key in self._keys[1:]]
        scores = torch.cat([first, *own], dim=-1).masked_fill(self._unseen(query), -torch.inf)
        weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        seen = weights[..., :width] @ self._values[0]
        for i, value in enumerate(self._values[1:]):
            seen = seen + weights[..., width + i : width + i + 1] * value
        return seen

    def _unseen(self, query: Tensor) -> Tensor:
        """Return which keys queries (B, heads, C, head_dim) do not see, (C, T + later steps): columns of the first step
        that come after their own, and what stands a window or more before the position of the query."""
        later, width = len(self._keys) - 1, self._keys[0].shape[2]
        column = torch.arange(width - query.shape[2], width, device=query.device).unsqueeze(1)
        first = column + later - torch.arange(width, device=query.device)
        own = torch.arange(later - 1, -1, -1, device=query.device).expand(len(column), -1)
        unseen, window = torch.cat([first < later, own < 0], dim=1), self._parts.sliding_window
        return unseen if window is None else unseen | (torch.cat([first, own], dim=1) >= window)
