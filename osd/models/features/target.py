"""What a feature draft takes from its target: hidden states, embeddings and the output layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from osd.models.features.errors import FeatureDraftMismatch
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


def layer_stack(module: PreTrainedModel) -> nn.ModuleList:
    """Return the target's decoder layers. Raises FeatureDraftMismatch where no stack of them is found."""
    count = module.config.get_text_config().num_hidden_layers
    text: Any = module.get_decoder()  # type: ignore[no-untyped-call]
    stacks = [part for part in text.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if not stacks:
        reason = f"no stack of {count} layers was found in it, whose hidden states could be read."
        raise FeatureDraftMismatch(draft="any", target=type(module).__name__, reason=reason)
    return max(stacks, key=lambda stack: sum(weight.numel() for weight in stack.parameters()))


@contextmanager
def hidden_states_kept(module: PreTrainedModel, layers: Sequence[int], into: dict[int, Tensor]) -> Iterator[None]:
    """Keep hidden states (B, T, H) in ``into`` during the block, by their numbers: i is the input of layer i, and the
    number of layers is what the output layer reads."""
    stack = layer_stack(module)
    output: Any = module.get_output_embeddings()  # type: ignore[no-untyped-call]

    def keep(number: int, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        into[number] = args[0] if args else kwargs["hidden_states"]

    with ExitStack() as hooks:
        for number in layers:
            part = output if number == len(stack) else stack[number]
            handle = part.register_forward_pre_hook(partial(keep, number), with_kwargs=True)
            hooks.callback(handle.remove)
        yield


def read_features(
    module: PreTrainedModel, tokens: Tensor, layers: Sequence[int], **inputs: Any
) -> tuple[Tensor, Tensor]:
    """Run the target over tokens (B, T) without a cache; return features (B, T, F), the hidden states ``layers`` side
    by side, and logits (B, T, V). ``inputs``: what else the module takes, an attention mask perhaps."""
    kept: dict[int, Tensor] = {}
    with hidden_states_kept(module, layers, kept):
        logits: Tensor = module(input_ids=tokens, use_cache=False, **inputs).logits
    return torch.cat([kept[number] for number in layers], dim=-1), logits
