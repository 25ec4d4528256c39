"""MTP heads: the layer that a target brings, which predicts the token after the next (MiMo; DeepSeek-V3, Section 2.2).

input_proj mixes the norm of the target's last feature, taken before its last norm, and the norm of the next token's
embedding. A decoder layer of Qwen2's kind follows, and a norm: what comes of it is the head's own feature, which the
target's output layer reads, and the same head again for the token after. The embedding in the first column is zero.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from osd.models.features.eagle import EagleDraft

ARCHITECTURE = "MiMoForCausalLM"
"""What vLLM makes an MTP head of."""
FACTS = {
    "model_type": "qwen2", "num_nextn_predict_layers": 1, "attention_bias": True, "use_sliding_window": False,
}  # fmt: skip
"""Fields of a head's config.json that its module has otherwise."""
BEFORE = "model.mtp_layers.0."
RENAMED = (
    (re.compile(r"^mtp_layers\.0\.input_proj\."), "fc."),
    (re.compile(r"^mtp_layers\.0\.((?:input|post_attention)_layernorm|self_attn|mlp)\."), r"layers.0.\1."),
    (re.compile(r"^mtp_layers\.0\."), ""),
)
"""Names of checkpoints, as ours."""


def published_name(name: str) -> str:
    """Return a tensor's name in a checkpoint."""
    return BEFORE + name.removeprefix("layers.0.").replace("fc.", "input_proj.")


def shared_tensors(embeddings: Tensor, head: Tensor) -> dict[str, Tensor]:
    """Return copies of a target's embeddings and output layer, (V, H) each, by their names in a checkpoint."""
    shared = {"model.embed_tokens.weight": embeddings, "lm_head.weight": head}
    return {name: weight.detach().cpu().clone().contiguous() for name, weight in shared.items()}


class MtpDraft(EagleDraft):
    """One MTP head, which runs on its own features."""

    kind = "mtp"

    def __init__(self, config: LlamaConfig, token_map: Tensor | None = None) -> None:
        super().__init__(config, token_map)
        self.token_layernorm, self.hidden_layernorm, self.final_layernorm = (
            LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(3)
        )

    @property
    def _size(self) -> int:
        """One layer; its configuration counts those of the target."""
        return 1

    def _layer(self, config: LlamaConfig) -> nn.Module:
        layer = LlamaDecoderLayer(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            size = getattr(layer.self_attn, name).weight.shape[0]
            setattr(layer.self_attn, name, nn.Linear(config.hidden_size, size))
        return layer

    def feature_layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        """See :meth:`osd.models.features.base.FeatureDraft.feature_layers`: the last layer's output."""
        return (int(target.config.get_text_config().num_hidden_layers) + 1,)

    def enter(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`osd.models.features.eagle.EagleDraft.enter`."""
        mixed = self.fc(torch.cat([self.hidden_layernorm(hidden), self.token_layernorm(embedding)], dim=-1))
        return self.layer.input_layernorm(mixed), mixed

    def shown(self, embedding: Tensor, positions: Tensor) -> Tensor:
        """See :meth:`osd.models.features.eagle.EagleDraft.shown`: nothing in the first column."""
        return embedding.masked_fill((positions == 0).unsqueeze(-1), 0.0)

    def leave(self, hidden: Tensor) -> Tensor:
        """See :meth:`osd.models.features.eagle.EagleDraft.leave`."""
        normed: Tensor = self.final_layernorm(hidden)
        return normed
