"""Medusa: K heads on the last hidden state, of which head k predicts the token k + 2 further on.

A head is residual blocks x ← x + SiLU(W x) and an output layer (Medusa, Eq. 1). The output layer is the target's, which
is what the paper's heads start from; a published folder may bring one a head.
"""

from __future__ import annotations

from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig

from osd.models.features.base import AHEAD, FeatureDraft, Unrolled
from osd.models.features.target import Embed, OutputHead


class MedusaConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]  # its own base is untyped
    """The configuration of Medusa heads, by the names that vLLM reads."""

    model_type = "medusa"

    def __init__(
        self, hidden_size: int = 32, vocab_size: int = 32, num_heads: int = 4, num_hidden_layers: int = 1,
        truncated_vocab_size: int | None = None, original_lm_head: bool = True, medusa_fc_bias: bool = False,
        **facts: Any,
    ) -> None:  # fmt: skip
        """``num_hidden_layers``: residual blocks of a head; ``original_lm_head``: one output layer for all, the
        target's."""
        super().__init__(**facts)
        self.hidden_size, self.vocab_size = hidden_size, vocab_size
        self.num_heads, self.num_hidden_layers = num_heads, num_hidden_layers
        self.truncated_vocab_size = vocab_size if truncated_vocab_size is None else truncated_vocab_size
        self.original_lm_head, self.medusa_fc_bias = original_lm_head, medusa_fc_bias


class MedusaHead(nn.Module):
    """One head, up to its output layer."""

    def __init__(self, size: int, layers: int, bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(size, size, bias=bias) for _ in range(layers)])

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute (…, H) from (…, H)."""
        for layer in self.layers:
            hidden = hidden + F.silu(layer(hidden))
        return hidden


class MedusaDraft(FeatureDraft):
    """K heads on the target's last hidden state."""

    kind = "medusa"

    def __init__(self, config: MedusaConfig, token_map: Tensor | None = None) -> None:
        super().__init__(config, token_map)
        size, layers = config.hidden_size, config.num_hidden_layers
        self.blocks = nn.ModuleList([MedusaHead(size, layers, config.medusa_fc_bias) for _ in range(config.num_heads)])
        own = 0 if config.original_lm_head else config.num_heads
        self.lm_heads = nn.ModuleList([nn.Linear(size, config.truncated_vocab_size, bias=False) for _ in range(own)])
        """Output layers of its own, one a head; none where they are the target's."""

    @property
    def heads(self) -> int:
        """K: how many tokens it can draft."""
        return len(self.blocks)

    def set_vocabulary(self, token_map: Tensor | None) -> None:
        """See :meth:`osd.models.features.base.FeatureDraft.set_vocabulary`."""
        super().set_vocabulary(token_map)
        self.lm_heads = nn.ModuleList()
        size = self.vocab_size if token_map is None else len(token_map)
        self.config.update({"original_lm_head": True, "truncated_vocab_size": size})

    def head_logits(self, features: Tensor, step: int, head: OutputHead) -> Tensor:
        """Return what head ``step`` says of features (…, H): (…, Vd or V)."""
        hidden = self.blocks[step](features)
        if len(self.lm_heads):
            return head.finish(cast(Tensor, self.lm_heads[step](hidden)))
        return self.logits(hidden, head)

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, head: OutputHead, steps: int, first: int = 0
    ) -> list[Unrolled]:
        """Compute the first ``steps`` heads; see :meth:`osd.models.features.base.FeatureDraft.unroll`."""
        features = features[:, first:]
        count = min(steps, self.heads)
        return [Unrolled(self.head_logits(features, step, head), step + AHEAD, None) for step in range(count)]
