"""P-EAGLE: an EAGLE-3 draft of several layers that drafts all tokens in one pass (P-EAGLE, arXiv 2602.01469).

Behind the columns that it reads stand masked ones: the embedding of a mask token, and in place of the target's hidden
states a vector that was learned (``mask_hidden``). A masked column sees the text and the masks before it, so the first
tokens are the same however many are drafted. It may have embeddings of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from osd.models.features.base import AHEAD, Unrolled, shifted
from osd.models.features.eagle import Eagle3Draft, UnrolledAttention
from osd.models.features.target import Embed, OutputHead


class PEagleDraft(Eagle3Draft):
    """Layers over several hidden states of the target, which go on over masks."""

    kind = "peagle"
    at_once = True

    def __init__(
        self, config: LlamaConfig, token_map: Tensor | None = None, *, own_head: bool = False, own_embed: bool = False
    ) -> None:
        """``own_head``, ``own_embed``: it has an output layer, or embeddings, of its own."""
        super().__init__(config, token_map, own_head=own_head)
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, self.feature_size))
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size) if own_embed else None

    def embedded(self, embed: Embed) -> Embed:
        """Return its embeddings; ``embed``: the target's."""
        return embed if self.embed_tokens is None else self.embed_tokens

    def masked(self, embed: Embed) -> tuple[Tensor, Tensor]:
        """Return a masked column's embedding and feature, (1, 1, H) each."""
        token = torch.full((1, 1), self.mask_token, device=self.mask_hidden.device)
        return self.embedded(embed)(token), self.begin(self.mask_hidden)

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, head: OutputHead, steps: int, first: int = 0
    ) -> list[Unrolled]:
        """Compute ``steps`` tokens of the drafts that begin at columns from ``first`` on; see
        :meth:`osd.models.features.base.FeatureDraft.unroll`."""
        attention = [UnrolledAttention(layer, self.rotary) for layer in self.layers]
        known, (mask, mask_hidden) = self.embedded(embed)(shifted(tokens, 1)), self.masked(embed)
        embedding, hidden, found = known.to(features.dtype), self.begin(features), []
        for step in range(steps):
            for i, layer in enumerate(self.layers):
                begin = first if step or i + 1 == len(self.layers) else 0
                hidden = self._through(layer, i, hidden, embedding, attention[i], (step, begin))
            found.append(Unrolled(self.logits(self.norm_out(self.leave(hidden)), head), step + AHEAD, None))
            embedding, hidden = (each.to(hidden.dtype).expand_as(hidden) for each in (mask, mask_hidden))
        return found

    def _through(
        self, layer: Any, index: int, hidden: Tensor, embedding: Tensor, attention: UnrolledAttention,
        at: tuple[int, int],
    ) -> Tensor:  # fmt: skip
        """Compute a layer in a step, at columns from a first one on (``at``)."""
        read, residual = (layer.input_layernorm(hidden), hidden) if index else self.enter(embedding, hidden)
        step, begin = at
        hidden = residual[:, 0 if step else begin :] + attention(read, step, begin)
        found: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return found
