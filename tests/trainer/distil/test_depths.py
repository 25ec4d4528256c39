"""First choices by depth in the gate's evidence: chain by chain, token by token, with sums written out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from osd.models.features.target import FeatureTarget
from storage.records import RequestSamples, TokenKind
from storage.settings import GateSettings
from tests.support.plain_chains import plain_features
from tests.trainer.feature_drafts import KINDS, answered, feature_draft, tiny_target
from tests.trainer.models import VOCAB, answers, random_prompts, tiny_llama
from trainer.distil.gate import judge, score_both
from trainer.distil.scores import DEPTHS, DraftScores, score
from trainer.distil.teacher import Lessons, RecomputeTeacher

Choose = Callable[[int, int], int]
"""The draft's first choice for a position, at a depth of its chain."""


def plain(s: RequestSamples, depths: int, choose: Choose, chances: Sequence[Tensor]) -> tuple[list[float], ...]:
    """Chains, right ones and the target's probabilities by depth; ``chances`` (V,) by recorded position."""
    recorded = s.positions.tolist()
    chains, right, chosen = ([0.0] * depths for _ in range(3))
    for begin in range(s.prompt_len, len(s.tokens)):
        for depth, position in enumerate(range(begin, min(begin + depths, len(s.tokens)))):
            if position not in recorded:
                break
            choice = choose(position, depth)
            chains[depth] += 1
            chosen[depth] += float(chances[recorded.index(position)][choice])
            if choice != s.tokens[position]:
                break
            right[depth] += 1
    return chains, right, chosen


def stored(s: RequestSamples) -> list[Tensor]:
    """The target's probabilities (V,) at each recorded position, as far as they were kept."""
    found = torch.zeros(len(s), VOCAB)
    for row, ids, logprobs in zip(found, s.topk_ids, s.topk_logprobs, strict=True):
        row[ids.tolist()] = torch.from_numpy(logprobs.astype(np.float32)).exp()
    return list(found)


def compared(found: DraftScores, wanted: Sequence[tuple[list[float], ...]]) -> None:
    for name, want in zip(("chains", "right", "chosen"), zip(*wanted, strict=True), strict=True):
        np.testing.assert_allclose(getattr(found, name), np.array(want), atol=2e-3, err_msg=name)


def taken(s: RequestSamples, kept: Sequence[int]) -> RequestSamples:
    """The request with some of its positions."""
    names = ("positions", "kinds", "drafted", "topk_ids", "topk_logprobs", "outside")
    return replace(s, **{name: getattr(s, name)[kept] for name in names})


@torch.inference_mode()
def test_of_an_ordinary_draft() -> None:
    target, draft = tiny_llama(1), tiny_llama(1)
    for weight in draft.parameters():
        weight.add_(0.15 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)))
    samples = answers(target, [prompt[: 1 + i % 3] for i, prompt in enumerate(random_prompts(9))], k=3)
    samples = [taken(s, [0, 1, 2, 3, 4, 6, 7, 8, 10]) if i % 2 else s for i, s in enumerate(samples)]
    wanted = []
    for s in samples:
        choices = draft(torch.tensor([s.tokens.tolist()])).logits[0].argmax(-1)
        wanted.append(plain(s, DEPTHS, lambda position, _, found=choices: int(found[position - 1]), stored(s)))
    found = score(draft, samples)
    compared(found, wanted)
    chains, right = found.chains.sum(0), found.right.sum(0)
    assert right[0] == found.agreement.sum() and 0 < right[0] < chains[0] and 0 < chains[4] < chains[1] < chains[0]


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_feature_draft(kind: str) -> None:
    module = tiny_target()
    target, draft = FeatureTarget(module), feature_draft(kind, module)
    samples, steps = answered(module, 12), 3
    layers = draft.feature_layers(module)
    found = score(draft, samples, lessons=Lessons(RecomputeTeacher(target, layers), steps))
    wanted = []
    for s in samples:
        features, rows = plain_features(target, s.tokens.tolist(), layers)
        unrolled = draft.unroll(features[None], torch.tensor([s.tokens.tolist()]), target.embed, target.head, steps)
        choices = [draft.whole(each.logits)[0].argmax(-1) for each in unrolled]

        def choose(position: int, depth: int, found: list[Tensor] = choices) -> int:
            return int(found[depth][position - 2 - depth])

        first = replace(s, prompt_len=s.prompt_len + 1)  # the first token of an answer is the prefill's
        wanted.append(plain(first, steps, choose, list(rows[s.positions - 1])))
    compared(found, wanted)
    assert found.right.sum() > 0


def test_the_evidence_has_shares_of_both_drafts_and_of_texts_alone_no_probabilities() -> None:
    target, draft = tiny_llama(1), tiny_llama(2)
    samples = answers(target, random_prompts(6))
    evidence = judge([score_both(draft, target, samples)], GateSettings()).evidence
    assert json.loads(json.dumps(evidence)) == evidence
    assert evidence["right_by_depth_after"] == [1.0] * DEPTHS, "the target guesses its own texts"
    first = score(draft, samples)
    assert evidence["right_by_depth_before"][0] == pytest.approx(first.agreement.sum() / 72, abs=1e-4)
    likely = np.exp(np.concatenate([s.topk_logprobs[:, 0] for s in samples]).astype(np.float32)).mean()
    assert evidence["target_probability_by_depth_after"][0] == pytest.approx(likely, abs=1e-3)
    mistakes = [replace(taken(s, [1, 4]), kinds=np.full(2, TokenKind.REJECTED, np.uint8)) for s in samples]
    texts = judge([score_both(draft, target, mistakes)], GateSettings()).evidence
    assert texts["measure"] == "agreement" and texts["right_by_depth_after"] == [1.0] * DEPTHS
    assert not [name for name in texts if "probability" in name]
