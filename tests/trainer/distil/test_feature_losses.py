"""The losses of feature drafts, and their gradients, beside the plain ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from osd.models.features.base import FeatureDraft
from osd.models.features.new import new_feature_draft
from osd.models.features.target import FeatureTarget
from storage.records import RequestSamples
from storage.settings import LearnSettings
from tests.support.plain_chains import PLAIN, plain_loss
from tests.trainer.feature_drafts import KINDS, answered, feature_draft, tiny_target
from trainer.distil.collate import collate
from trainer.distil.feature_losses import FeatureLosses
from trainer.distil.teacher import RecomputeTeacher

STEPS, WEIGHT, REGRESSION = 3, 0.7, 2.0
MAP = [0, 1, *range(3, 48, 2)]


@cache
def texts() -> list[RequestSamples]:
    """Three answers of several lengths to prompts of several lengths."""
    module = tiny_target()
    return [answered(module, 3, new)[i] for i, new in enumerate((9, 5, 7))]


def checked(kind: str, loss: str, token_map: list[int] | None, *, whole: bool) -> None:
    """Compare the sum and its gradient over three texts of several lengths, padded, with the plain ones."""
    module = tiny_target()
    target, draft = FeatureTarget(module), feature_draft(kind, module, token_map)
    samples = texts()
    learn = LearnSettings(
        loss=loss, jsd_beta=0.3, steps=STEPS, step_weight=WEIGHT, feature_weight=REGRESSION
    )  # fmt: skip
    batch = completed(draft, target, samples)
    batch = batch if whole else replace(batch, rows_logprobs=None)
    said = FeatureLosses(draft, learn, target)(batch)
    plain = plain_loss(draft, target, samples, PLAIN[loss], STEPS, WEIGHT, REGRESSION, whole=whole)
    torch.testing.assert_close(said, plain, rtol=2e-4, atol=1e-5)
    weights = list(draft.parameters())
    for ours, theirs in zip(torch.autograd.grad(said, weights), torch.autograd.grad(plain, weights), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=5e-3, atol=5e-5)


def completed(draft: FeatureDraft, target: FeatureTarget, samples: list[RequestSamples]):
    return RecomputeTeacher(target, draft.feature_layers(target.module)).complete(collate(samples), samples)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", PLAIN)
def test_loss_and_gradient_are_the_plain_ones_over_whole_distributions(kind: str, loss: str) -> None:
    checked(kind, loss, None, whole=True)


@pytest.mark.parametrize("loss", PLAIN)
def test_loss_and_gradient_are_the_plain_ones_over_what_was_stored(loss: str) -> None:
    checked("eagle", loss, None, whole=False)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_over_a_draft_vocabulary_a_position_weighs_what_the_target_gives_it(kind: str, *, whole: bool) -> None:
    checked(kind, "forward_kl", MAP, whole=whole)


def test_a_vocabulary_without_most_of_what_the_target_says_leaves_the_loss_finite() -> None:
    module = tiny_target()
    target, samples = FeatureTarget(module), answered(module, 2)
    said = {int(token) for s in samples for token in (*s.tokens, *s.topk_ids.ravel())}
    token_map = [token for token in range(48) if token not in said or token == 1]  # an end token is always in it
    draft = feature_draft("medusa", module, token_map)
    batch = replace(completed(draft, target, samples), rows_logprobs=None)
    loss = FeatureLosses(draft, LearnSettings(), target)(batch)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(each).all() for each in torch.autograd.grad(loss, list(draft.parameters())))


def test_all_medusa_heads_are_taught_whatever_the_steps() -> None:
    module = tiny_target()
    target, samples = FeatureTarget(module), answered(module, 3)
    draft = new_feature_draft("medusa", target, heads=4).requires_grad_(True)
    loss = FeatureLosses(draft, LearnSettings(steps=2), target)(completed(draft, target, samples))
    weights = [head.layers[0].weight for head in draft.blocks]
    assert all(gradient.abs().sum() > 0 for gradient in torch.autograd.grad(loss, weights))


def test_nothing_is_drafted_within_a_prompt() -> None:
    module = tiny_target()
    target, draft = FeatureTarget(module), feature_draft("eagle", module)
    (one,) = answered(
        module, 1, new=2
    )  # positions p and p + 1 of the answer: only the second is ever drafted, by step 0
    loss = FeatureLosses(draft, LearnSettings(steps=3, feature_weight=0), target)
    both = loss(completed(draft, target, [one]))
    plain = plain_loss(draft, target, [one], PLAIN["forward_kl"], 3, 0.8, 0.0, whole=True)
    torch.testing.assert_close(both, plain)
    assert float(both.detach()) > 0
