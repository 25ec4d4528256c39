"""What teachers add to a batch: the target's own hidden states and distributions, from memory or from the store."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from osd.models.features.target import FeatureTarget
from storage.errors import FeaturesNotKept
from tests.support.models import CONFIGS, random_module
from tests.support.plain_chains import require_own
from tests.trainer.feature_drafts import answered, feature_draft, tiny_target, with_states
from trainer.distil.collate import collate, select
from trainer.distil.feature_losses import unroll_at
from trainer.distil.teacher import RecomputeTeacher, RecordedTeacher


class Counted(RecomputeTeacher):
    """Counts the texts that the target reads."""

    reads = 0

    def _compute(self, samples):
        self.reads += len(samples)
        return super()._compute(samples)


@pytest.mark.parametrize("kind", CONFIGS)
def test_features_and_distributions_are_the_targets_own(kind: str) -> None:
    module = random_module(kind)
    target = FeatureTarget(module)
    samples = [answered(tiny_target(), 3, new)[i] for i, new in enumerate((4, 9, 6))]
    layers = (1, 2)
    batch = RecomputeTeacher(target, layers).complete(collate(samples), samples)
    require_own(batch, target, samples, layers)


def test_what_was_read_is_not_read_again_while_there_is_memory() -> None:
    module = tiny_target()
    samples = answered(module, 4)
    teacher, none = (Counted(FeatureTarget(module), (2,), cache_mb=mb) for mb in (64, 0))
    first = teacher.complete(collate(samples), samples)
    again = teacher.complete(collate(samples[::-1]), samples[::-1])
    assert teacher.reads == 4
    torch.testing.assert_close(first.rows_logprobs[: len(samples[0])], again.rows_logprobs[-len(samples[0]) :])
    for _ in range(2):
        none.complete(collate(samples), samples)
    assert none.reads == 8


def test_a_text_is_read_again_where_less_of_it_was_asked_for_before() -> None:
    module = tiny_target()
    (one,) = answered(module, 1)
    short = replace(one, kinds=np.r_[np.ones(3), np.zeros(len(one) - 3)].astype(np.uint8))
    teacher = Counted(FeatureTarget(module), (2,), cache_mb=64)
    few = select(short, "rejected")
    teacher.complete(collate([few]), [few])
    teacher.complete(collate([one]), [one])
    assert teacher.reads == 2


def test_recorded_hidden_states_stand_where_those_recomputed_would() -> None:
    module = tiny_target()
    target, samples = FeatureTarget(module), with_states(module, answered(module, 3))
    batch = RecordedTeacher(target, (target.layers,)).complete(collate(samples), samples)
    again = RecomputeTeacher(target, (target.layers,)).complete(collate(samples), samples)
    assert batch.rows_logprobs is None
    for ours, theirs in zip(*(each.features[each.rows, each.columns] for each in (batch, again)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
    medusa = feature_draft("medusa", module)  # it reads no column but its own, so the prompt says nothing to it
    steps = zip(*(unroll_at(medusa, target, each, 3) for each in (batch, again)), strict=True)
    for one, other in steps:
        assert one.at.tolist() == other.at.tolist()
        torch.testing.assert_close(one.logits, other.logits, rtol=2e-2, atol=2e-2)


def test_a_store_without_hidden_states_says_which_setting_keeps_them() -> None:
    module = tiny_target()
    target, samples = FeatureTarget(module), answered(module, 2)
    teacher = RecordedTeacher(target, (target.layers,))
    assert not teacher.can_read(samples[0])
    with pytest.raises(FeaturesNotKept, match=r"serve.record_hidden_states.*learn.teacher|learn.teacher.*serve.record"):
        teacher.complete(collate(samples), samples)
    (gap,) = with_states(module, samples[:1])
    kept = [0, 2, 3]
    names = ("positions", "kinds", "drafted", "topk_ids", "topk_logprobs", "outside", "hidden_states")
    gap = replace(gap, acceptance=None, **{name: getattr(gap, name)[kept] for name in names})
    with pytest.raises(FeaturesNotKept, match="some positions were not kept"):
        teacher.complete(collate([gap]), [gap])


def test_hidden_states_of_three_depths_are_never_kept() -> None:
    target = FeatureTarget(tiny_target())
    with pytest.raises(FeaturesNotKept, match="recompute"):
        RecordedTeacher(target, (0, 1, 2))
