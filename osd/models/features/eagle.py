"""EAGLE: one decoder layer over the target's last feature and the next token's embedding, then over its own features.

The layer reads fc(embedding of token t + 1 ; feature t); its output is the feature of t + 1, from which the target's
output layer predicts token t + 2 (EAGLE, Section 4.1). The layer has no norm of its input, and none follows it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from osd.models.features.attention import UnrolledAttention
from osd.models.features.base import AHEAD, FeatureDraft, Unrolled, shifted
from osd.models.features.target import Embed, OutputHead


class EagleDraft(FeatureDraft):
    """One decoder layer that runs on its own features."""

    kind = "eagle"

    def __init__(self, config: LlamaConfig, token_map: Tensor | None = None) -> None:
        super().__init__(config, token_map)
        self.fc = nn.Linear(self._entry_size, config.hidden_size, bias=bool(getattr(config, "bias", False)))
        self.layers = nn.ModuleList([self._layer(config)])
        self.rotary = LlamaRotaryEmbedding(config)

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

    def norm_out(self, hidden: Tensor) -> Tensor:
        """Return what the output layer reads, (…, H), of the layer's output, which is the next feature."""
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
            entered, residual = self.enter(embedding, hidden)
            hidden = residual[:, first - before :] + attention(entered, step, first)
            hidden = hidden + self.layer.mlp(self.layer.post_attention_layernorm(hidden))
            found.append(Unrolled(self.logits(self.norm_out(hidden), head), step + AHEAD, hidden))
        return found
