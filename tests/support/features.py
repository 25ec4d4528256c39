"""Feature drafts that are sometimes right: random ones that have learned some texts of a random target."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from osd.models.features.decoder import feature_model, feature_target
from osd.models.features.new import new_feature_draft
from osd.models.features.target import read_features
from osd.models.pair import Pair
from tests.support.models import VOCABULARY, identity, model_of, random_module

BATCH, LENGTH = 32, 24


def texts(module: Any, vocabulary: int) -> torch.Tensor:
    """Greedy texts of a target, behind a random token each: (B, T)."""
    start = torch.randint(2, vocabulary, (BATCH, 1), generator=torch.Generator().manual_seed(0))
    told = {"max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return module.generate(start, attention_mask=torch.ones_like(start), **told)


LEARNED: dict[tuple[object, ...], dict[str, torch.Tensor]] = {}
"""Weights by kind, target, steps, seed and tokens: what was learned once is not learned again."""


@torch.inference_mode(False)
def trained(kind: str, target: Any, steps: int = 40, seed: int = 0, token_map: list[int] | None = None) -> Any:
    """A draft after some steps of learning what the target says, to the target's own distribution."""
    read = feature_target(target)
    draft = new_feature_draft(kind, read, token_map=token_map, seed=seed)
    key = kind, identity(target.module), steps, seed, tuple(token_map or ())
    if key not in LEARNED:
        learn(draft, read, target, steps, token_map)
        LEARNED[key] = {name: weight.detach().clone() for name, weight in draft.state_dict().items()}
    draft.load_state_dict(LEARNED[key])
    return draft.requires_grad_(False)


@torch.enable_grad()
def learn(draft: Any, read: Any, target: Any, steps: int, token_map: list[int] | None) -> None:
    """Teach a draft in place."""
    draft.requires_grad_(True)
    tokens = texts(target.module, read.vocab_size)
    features, logits = read_features(target.module, tokens, draft.feature_layers(target.module))
    optimizer = torch.optim.Adam(draft.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = torch.zeros(())
        for step in draft.unroll(features, tokens, read.embed, read.head, 3):
            goal = logits[:, step.shift - 1 :].softmax(-1)
            goal = goal if token_map is None else goal[..., token_map]
            said = step.logits[:, : goal.shape[1]].log_softmax(-1)
            loss = loss - (goal * said).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@cache
def feature_pair(
    kind: str, family: str = "llama", *, steps: int = 40, seed: int = 0, vocabulary: int = VOCABULARY,
    eos: int | None = None, token_map: tuple[int, ...] | None = None,
) -> Pair:  # fmt: skip
    """A random target, and a draft of this kind that has learned a little of it."""
    target = model_of(random_module(family, vocabulary=vocabulary), "target")
    draft = feature_model("draft", trained(kind, target, steps, seed, list(token_map) if token_map else None), target)
    return Pair(target, draft, None, frozenset() if eos is None else frozenset([eos]))


def random_at_once(kind: str, target: Any, token_map: list[int] | None = None, **facts: Any) -> Any:
    """A P-EAGLE or DFlash draft with these fields, whose weights are random, norms too."""
    draft = new_feature_draft(kind, target, token_map=token_map)  # type: ignore[arg-type]
    config = draft.config
    config.update({"use_sliding_window": "sliding_window" in facts, **facts})
    draft = type(draft)(config, draft.token_map)
    generator = torch.Generator().manual_seed(4)
    for weight in draft.parameters():
        drawn = torch.randn(weight.shape, generator=generator)
        weight.data = 1 + 0.3 * drawn if weight.dim() == 1 else 1.5 * drawn / weight.shape[-1] ** 0.5
    return draft.eval().requires_grad_(False)


def with_qwen3_layers(folder: Path) -> None:
    """Make the layers of a folder's EAGLE-3 or P-EAGLE draft ones of Qwen3's kind, with random norms, in place."""
    facts, path = json.loads((folder / "config.json").read_text()), folder / "model.safetensors"
    tensors, generator = load_file(path), torch.Generator().manual_seed(6)
    for name in sorted(name for name in tensors if name.endswith("q_proj.weight")):
        for norm in ("q_norm", "k_norm"):
            drawn = torch.randn(facts["head_dim"], generator=generator)
            tensors[name.replace("q_proj", norm)] = 1 + 0.3 * drawn
    save_file(tensors, path)
    facts |= {"model_type": "qwen3", "architectures": ["Eagle3Qwen3ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(facts))
