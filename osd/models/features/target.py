"""What a feature draft takes from its target: hidden states, embeddings and the output layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from osd.models.hf_forward import hidden_states_noted
from osd.models.limits import named

Embed = Callable[[Tensor], Tensor]
"""Tokens (…) → embeddings (…, H)."""


class OutputHead:
    """A target's output layer, with what its configuration does to logits. Holds references, no weights of its own."""

    def __init__(self, layer: Any, config: Any) -> None:
        """``layer``: a product (V, H) with or without bias; ``config``: the target's, of text."""
        self.layer = layer
        self._cap, self._scale = named(config, "final_logit_softcapping"), named(config, "logit_scale")
        self._divide = named(config, "logits_scaling")

    @property
    def weight(self) -> Tensor:
        """(V, H)."""
        weight: Tensor = self.layer.weight
        return weight

    def __call__(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the logits (…, V) of hidden states (…, H), or those of the tokens ``rows`` (Vd,) alone, (…, Vd)."""
        hidden = hidden.to(self.weight.dtype)  # a draft that is trained has more bits than its target
        if rows is None:
            return self.finish(self.layer(hidden))
        bias = getattr(self.layer, "bias", None)
        return self.finish(F.linear(hidden, self.weight[rows], None if bias is None else bias[rows]))

    def finish(self, logits: Tensor) -> Tensor:
        """Scale and cap logits as the target does its own."""
        if isinstance(self._scale, float | int):
            logits = logits * self._scale
        if isinstance(self._divide, float | int):
            logits = logits / self._divide
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits


@dataclass(frozen=True)
class FeatureTarget:
    """A target, as far as feature drafts read it."""

    module: PreTrainedModel
    name: str = "target"
    digest: str | None = None
    """The digest of its files; None for one that came from none."""

    @cached_property
    def config(self) -> Any:
        """Its configuration of text."""
        return self.module.config.get_text_config()

    @property
    def layers(self) -> int:
        """Number of its layers, L: hidden state 0 is the first one's input, L what the output layer reads."""
        return int(self.config.num_hidden_layers)

    @cached_property
    def head(self) -> OutputHead:
        """Its output layer."""
        return OutputHead(self.module.get_output_embeddings(), self.config)  # type: ignore[no-untyped-call]

    @property
    def embed(self) -> Embed:
        """Its embeddings of tokens (…) → (…, H)."""
        found: Embed = self.module.get_input_embeddings()
        return found

    @property
    def embeddings(self) -> Tensor:
        """Its table of embeddings, (V, H)."""
        table: Any = self.module.get_input_embeddings()
        weight: Tensor = table.weight
        return weight

    @property
    def hidden_size(self) -> int:
        """Width of its hidden states, as the output layer takes them."""
        return int(self.head.weight.shape[1])

    @property
    def embedding_size(self) -> int:
        """Width of its embeddings."""
        return int(self.embeddings.shape[1])

    @property
    def vocab_size(self) -> int:
        """Width of its logits."""
        return int(self.head.weight.shape[0])


def read_states(module: PreTrainedModel, tokens: Tensor, layers: Sequence[int], **inputs: Any) -> list[Tensor]:
    """Run the target over tokens (B, T) without a cache; return its hidden states ``layers``, (B, T, H) each. Its
    output layer computes next to nothing. ``inputs``: what else the module takes, an attention mask perhaps."""
    kept: dict[int, Tensor] = {}
    output: Any = module.get_output_embeddings()  # type: ignore[no-untyped-call]
    with (
        hidden_states_noted(module, sorted(set(layers)), kept.__setitem__),
        output.register_forward_pre_hook(lambda _, args: (args[0][:, :1], *args[1:])),
    ):
        module(input_ids=tokens, use_cache=False, **inputs)
    return [kept[number] for number in layers]


def read_features(
    module: PreTrainedModel, tokens: Tensor, layers: Sequence[int], **inputs: Any
) -> tuple[Tensor, Tensor]:
    """Run the target over tokens (B, T) without a cache; return features (B, T, F), the hidden states ``layers`` side
    by side, and logits (B, T, V). ``inputs``: what else the module takes, an attention mask perhaps."""
    kept: dict[int, Tensor] = {}
    with hidden_states_noted(module, layers, kept.__setitem__):
        logits: Tensor = module(input_ids=tokens, use_cache=False, **inputs).logits
    return torch.cat([kept[number] for number in layers], dim=-1), logits
