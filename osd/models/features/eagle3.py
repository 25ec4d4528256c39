"""EAGLE-3: a decoder layer over hidden states of three depths, whose own features need not be like the target's.

fc mixes the target's hidden states into a first feature; the layer's attention reads the norm of the next token's
embedding and the norm of the feature, side by side, and a norm stands before the output layer (EAGLE-3, Section 3.1).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from osd.models.features.eagle import EagleDraft


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
        if own_head:
            size = config.vocab_size if token_map is None else len(token_map)
            self.lm_head = nn.Linear(config.hidden_size, size, bias=False)

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
        layer, attention = LlamaDecoderLayer(config, 0), config.attention_bias
        layer.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            size = getattr(layer.self_attn, name).weight.shape[0]
            setattr(layer.self_attn, name, nn.Linear(2 * config.hidden_size, size, bias=attention))
        return layer

    def begin(self, features: Tensor) -> Tensor:
        """Mix the target's hidden states (…, F) into a first feature (…, H)."""
        mixed: Tensor = self.fc(features)
        return mixed

    def enter(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`osd.models.features.eagle.EagleDraft.enter`."""
        layer = self.layer
        normed = layer.hidden_norm(hidden)
        residual = normed if getattr(self.config, "norm_before_residual", False) else hidden
        return torch.cat([layer.input_layernorm(embedding), normed], dim=-1), residual

    def norm_out(self, hidden: Tensor) -> Tensor:
        """Return what the output layer reads."""
        normed: Tensor = self.norm(hidden)
        return normed
