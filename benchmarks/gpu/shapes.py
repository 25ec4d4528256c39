"""Models of real shapes with random weights, and drafts that agree with them as often as is asked.

The draft is the target's embeddings, first layer, norm and output layer, copied. What the target's later layers add to
the stream is scaled: by 0 both are one, by 1 they have little in common.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from osd.models.model import Model
from osd.models.pair import Pair
from osd.models.proof import choose_forward

AGREEMENT = 0.77
"""Share of positions at which target and draft have the same likeliest token."""
TRIES = 9
POSITIONS = 256
"""Positions that agreement is measured at, of each of four texts."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a target."""

    name: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    inner: int

    def config(self, layers: int) -> LlamaConfig:
        """Return the configuration of a model with so many of its layers."""
        return LlamaConfig(
            vocab_size=self.vocabulary, hidden_size=self.hidden, num_hidden_layers=layers, eos_token_id=1,
            num_attention_heads=self.heads, num_key_value_heads=self.key_heads, intermediate_size=self.inner,
            max_position_embeddings=8192, bos_token_id=1, pad_token_id=0,
        )  # fmt: skip


SHAPES = {
    shape.name: shape
    for shape in (
        ModelShape("8b", 32_000, 4096, 32, 32, 8, 14_336),
        ModelShape("1b", 32_000, 2048, 16, 32, 8, 8192),
        ModelShape("8b-128k", 128_256, 4096, 32, 32, 8, 14_336),
        ModelShape("tiny", 512, 64, 3, 4, 2, 128),
    )
}
"""Those of Llama, and one for a CPU."""


class RandomPair(NamedTuple):
    """A pair, and the share of positions at which both have the same likeliest token."""

    pair: Pair
    agreement: float


@torch.inference_mode()
def random_pair(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> RandomPair:
    """Make a target and its draft on the device."""
    target, draft = (_random(shape.config(layers), device, dtype) for layers in (shape.layers, 1))
    for part in ("embed_tokens", "norm"):
        getattr(draft.model, part).load_state_dict(getattr(target.model, part).state_dict())
    draft.model.layers[0].load_state_dict(target.model.layers[0].state_dict())
    draft.lm_head.load_state_dict(target.lm_head.state_dict())
    agreement = _agree(target, draft, shape.vocabulary)
    both = [Model(shape.name, each, 8192, choose_forward(each, shape.name)) for each in (target, draft)]
    return RandomPair(Pair(both[0], both[1], None, frozenset()), agreement)


def other_draft(pair: Pair) -> Model:
    """Return a draft like the pair's, with weights of its own."""
    module = copy.deepcopy(pair.draft.module)
    return Model("other", module, pair.draft.limit, pair.draft.build)


def _random(config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    with torch.inference_mode(False), device:
        made: Any = LlamaForCausalLM
        model = made._from_config(config, dtype=dtype)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            weight.normal_(std=1.0 if "embed" in name else 1.5 * weight.shape[1] ** -0.5)
    return model.eval().requires_grad_(False)


def _agree(target: Any, draft: Any, vocabulary: int) -> float:
    """Scale what the target's later layers add, by halving, until the draft agrees as often as AGREEMENT says; return
    how often it does."""
    device = target.device
    texts = torch.randint(2, vocabulary, (4, POSITIONS), generator=torch.Generator().manual_seed(1)).to(device)
    wanted = torch.stack([draft(texts[i : i + 1], use_cache=False).logits[0].argmax(-1) for i in range(len(texts))])
    products = [part for layer in target.model.layers[1:] for part in (layer.self_attn.o_proj, layer.mlp.down_proj)]
    low, high, now, agreed = 0.0, 1.0, 1.0, 0.0
    for _ in range(TRIES):
        middle = (low + high) / 2
        for part in products:
            part.weight.mul_(middle / now)
        now = middle
        said = [target(texts[i : i + 1], use_cache=False).logits[0].argmax(-1) for i in range(len(texts))]
        agreed = float((torch.stack(said) == wanted).float().mean())
        low, high = (middle, high) if agreed > AGREEMENT else (low, middle)
    return agreed
