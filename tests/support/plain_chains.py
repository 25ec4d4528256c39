"""The plain loss of a feature draft: text by text, chain by chain, token by token, with sums written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from osd.models.features.base import FeatureDraft
from osd.models.features.target import FeatureTarget
from storage.records import RequestSamples
from trainer.distil.collate import TrainingBatch

Divergence = Callable[[Tensor, Tensor], Tensor]
TINY = 1e-300


def _terms(p: Tensor, q: Tensor) -> Tensor:
    return torch.where(p > 0, p * (p.clamp(min=TINY).log() - q.clamp(min=TINY).log()), torch.zeros_like(p)).sum()


PLAIN: dict[str, Divergence] = {
    "forward_kl": _terms,
    "reverse_kl": lambda p, q: _terms(q, p),
    "jsd": lambda p, q: 0.3 * _terms(p, 0.3 * p + 0.7 * q) + 0.7 * _terms(q, 0.3 * p + 0.7 * q),
    "total_variation": lambda p, q: 0.5 * (p - q).abs().sum(),
}
"""Divergences of probabilities p and q, (c,) each; β = 0.3."""


def plain_features(target: FeatureTarget, tokens: Sequence[int], layers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return hidden states (n, F) and the distributions (n, V) of one text, by transformers' own means; behind its
    hidden states stands what the last layer leaves to the norm."""
    module: Any = target.module
    last: list[Any] = []
    stacks = [each for each in module.modules() if isinstance(each, torch.nn.ModuleList)]
    layers_of = next(each for each in stacks if len(each) == target.layers)  # not those of eyes
    hook = layers_of[-1].register_forward_hook(lambda _layer, _given, left: last.append(left))
    with torch.no_grad():
        said: Any = module(torch.tensor([list(tokens)]), output_hidden_states=True, use_cache=False)
    hook.remove()
    states = [*said.hidden_states, last[0][0] if isinstance(last[0], tuple) else last[0]]
    return torch.cat([states[number][0] for number in layers], -1), said.logits[0].softmax(-1)


def require_own(
    batch: TrainingBatch, target: FeatureTarget, samples: Sequence[RequestSamples], layers: Sequence[int]
) -> None:
    """Require that a teacher's batch has each text's own hidden states and distributions."""
    place = 0
    for row, s in enumerate(samples):
        features, rows = plain_features(target, s.tokens.tolist(), layers)
        length = int(s.positions[-1])
        torch.testing.assert_close(batch.features[row, :length], features[:length], rtol=1e-4, atol=1e-4)
        theirs = batch.rows_logprobs[place : place + len(s)].exp()
        torch.testing.assert_close(theirs, rows[s.positions - 1], rtol=1e-3, atol=1e-5)
        place += len(s)


def plain_loss(
    draft: FeatureDraft, target: FeatureTarget, samples: Sequence[RequestSamples], divergence: Divergence, steps: int,
    weight: float, regression: float, *, whole: bool,
) -> Tensor:  # fmt: skip
    """Return the sum over positions of the weighted mean over steps. ``whole``: by whole distributions, else by those
    tokens that were stored and the rest."""
    total = torch.zeros(())
    for s in samples:
        tokens = s.tokens[: s.positions[-1]].tolist()
        features, rows = plain_features(target, tokens, draft.feature_layers(target.module))
        unrolled = draft.unroll(features[None], torch.tensor([tokens]), target.embed, target.head, steps)
        for step, each in enumerate(unrolled):
            for place, position in enumerate(s.positions.tolist()):
                begin = position - 2 - step
                if begin < s.prompt_len - 1:
                    continue
                q = draft.whole(each.logits)[0, begin].double().softmax(-1)
                p = rows[position - 1].double()
                loss = _over(draft, p, q, divergence) if whole else _stored(draft, s, place, q, divergence)
                if draft.kind == "eagle":
                    own, theirs = each.features[0, begin], features[position - 1]
                    loss = loss + regression * F.smooth_l1_loss(own, theirs)
                total = total + weight**step * loss.float()
    return total / sum(weight**step for step in range(steps))


def _over(draft: FeatureDraft, p: Tensor, q: Tensor, divergence: Divergence) -> Tensor:
    if draft.token_map is None:
        return divergence(p, q)
    p, q = p[draft.token_map], q[draft.token_map]
    return p.sum() * divergence(p / p.sum(), q)


def _stored(draft: FeatureDraft, s: RequestSamples, place: int, q: Tensor, divergence: Divergence) -> Tensor:
    ids = s.topk_ids[place].tolist()
    known = set(ids if draft.token_map is None else draft.token_map.tolist())
    kept = [(token, float(np.exp(np.float32(value)))) for token, value in zip(ids, s.topk_logprobs[place], strict=True)]
    total = sum(chance for _, chance in kept) + float(s.outside[place])
    p = torch.tensor([*(chance for token, chance in kept if token in known), float(s.outside[place])]).double() / total
    stored = torch.stack([q[token] for token, _ in kept if token in known])
    q = torch.cat([stored, (1 - q[ids].sum())[None]])
    return p.sum() * divergence(p / p.sum(), q)
