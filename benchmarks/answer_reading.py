"""What drafts say of a target's own answers, read once: where they are right, and the rounds of greedy chains.

A chain's tokens are those of the answer as long as they are right, so what a draft says after the answer's tokens is
what it would have drafted: no decoding is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from osd.bench.harness.prompts import Tokens
from osd.drafters.scoring import distributions
from osd.models.features.base import AHEAD, FeatureDraft
from osd.models.features.target import FeatureTarget, read_features
from osd.models.model import Model
from storage.sampling import Sampling

AT_ONE = Sampling(1.0)
"""The distributions themselves."""
GAMMA = 4
"""Tokens of a greedy chain."""
Right = Callable[[int, int], bool]
"""Whether a chain's token is right: by its number in the chain, from 0, and its place in the answer."""


class AnsweredPrompt(NamedTuple):
    """The target's answer to a prompt of a data set."""

    data_set: str
    prompt: Tokens
    tokens: Tokens

    def __str__(self) -> str:
        return self.data_set


@dataclass(frozen=True, slots=True)
class Reading:
    """What a draft says of one answer."""

    data_set: str
    draft: str
    positions: int
    right: float
    """Positions at which its likeliest token is the target's; of a feature draft the first token of a chain."""
    overlap: float
    """Σ min(p, q), summed over positions."""
    emitted: int
    """Tokens of the answer after its first, which the prefill brings."""
    rounds: int
    """Rounds that greedy chains of GAMMA tokens would take for them."""


@torch.no_grad()
def read_answer(
    target: Model, drafts: Mapping[str, Model | FeatureDraft], answer: AnsweredPrompt, at: Sampling = AT_ONE
) -> list[Reading]:
    """Let every draft read one answer, whose tokens were drawn after warping as ``at`` says."""
    text, count = [*answer.prompt, *target.start, *answer.tokens], len(answer.tokens)
    p = distributions(target.decoder(1, len(text)), text, count, at)
    said, found = torch.tensor(answer.tokens, device=p.device), []
    shared, read = FeatureTarget(target.module), dict[tuple[int, ...], Tensor]()
    for name, draft in drafts.items():
        if isinstance(draft, FeatureDraft):
            layers = draft.feature_layers(target.module)
            if layers not in read:
                read[layers] = read_features(target.module, torch.tensor([text], device=p.device), layers)[0]
            said_by = _feature_distributions(shared, draft, read[layers], text, count)
            begin = 1  # a feature draft begins after the first token
        else:
            own = distributions(draft.decoder(1, len(text)), text, count, at, p.shape[1]).to(p.device)
            said_by, begin = [own] * GAMMA, 0
        first, theirs = said_by[0][begin:], p[begin:]
        right = torch.stack([each.argmax(-1) == said for each in said_by]).tolist()
        overlap = torch.minimum(theirs, first).sum()
        rounds = rounds_of(lambda step, place, right=right: right[step][place], count, len(right))  # type: ignore[misc]
        found.append(
            Reading(answer.data_set, name, len(first), float(sum(right[0][begin:])), float(overlap), count - 1, rounds)
        )
    return found


def rounds_of(right: Right, count: int, gamma: int) -> int:
    """Return the rounds of an answer of ``count`` tokens, of which the prefill brings the first: each brings the tokens
    of a chain up to the first that is not right, and the target's own."""
    place, rounds = 1, 0
    while place < count:
        accepted = 0
        while accepted < min(gamma, count - place - 1) and right(accepted, place + accepted):
            accepted += 1
        place, rounds = place + accepted + 1, rounds + 1
    return rounds


def _feature_distributions(
    target: FeatureTarget, draft: FeatureDraft, features: Tensor, text: list[int], count: int
) -> list[Tensor]:
    """Return the distributions (count, V) of each step of chains at the places of an answer; zeros before the text's
    beginning."""
    tokens = torch.tensor([text], device=target.head.weight.device)
    prompt, found = len(text) - count, []
    for step, each in enumerate(draft.unroll(features, tokens, target.embed, target.head, GAMMA)):
        q = draft.whole(each.logits[0].float()).softmax(-1)
        begin = max(0, prompt - AHEAD - step)
        own = q[begin : len(text) - AHEAD - step]  # column t speaks of place t + AHEAD + step
        found.append(torch.cat([own.new_zeros(count - len(own), own.shape[1]), own])[-count:])
    return found
