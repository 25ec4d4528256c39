"""Feature drafts over a tiny target, and its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from osd.models.features.base import FeatureDraft
from osd.models.features.new import KINDS, new_feature_draft
from osd.models.features.target import FeatureTarget
from storage.records import RequestSamples
from tests.trainer.models import VOCAB, answers, random_prompts

__all__ = ["KINDS", "answered", "feature_draft", "tiny_target", "with_states"]


def tiny_target(seed: int = 1, layers: int = 2) -> PreTrainedModel:
    """A random Llama whose texts go in circles that a draft can learn."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=1, pad_token_id=0,
        initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def feature_draft(
    kind: str, target: PreTrainedModel, token_map: Sequence[int] | None = None, seed: int = 0, spread: float = 0.05
) -> FeatureDraft:
    """A draft whose weights are large enough that all of them matter."""
    draft = new_feature_draft(kind, FeatureTarget(target), heads=3, token_map=token_map, seed=seed)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    for weight in draft.parameters():
        weight.add_(spread * torch.randn(weight.shape, generator=generator))
    return draft.requires_grad_(True)


def answered(target: PreTrainedModel, count: int, new: int = 12, **fields: object) -> list[RequestSamples]:
    """What the target says to prompts of several lengths."""
    prompts = [prompt[: 2 + i % 4] for i, prompt in enumerate(random_prompts(count))]
    return answers(target, prompts, new, **fields)


@torch.no_grad()
def with_states(target: PreTrainedModel, samples: Sequence[RequestSamples]) -> list[RequestSamples]:
    """The same with the target's last hidden states, as serving keeps them."""
    found = []
    for s in samples:
        said = target(torch.tensor([s.tokens.tolist()]), output_hidden_states=True, use_cache=False)
        states = said.hidden_states[-1][0, s.positions - 1].numpy().astype(np.float16)
        found.append(replace(s, hidden_states=states))
    return found
