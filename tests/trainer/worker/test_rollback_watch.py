"""After a publication: a worse version is taken back by itself, a harder domain is no reason to."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from storage.records import DraftVersion, RequestSamples, VersionState, new_id, now
from storage.settings import LearnSettings, Settings
from storage.store import Store
from tests.trainer.conftest import Traffic
from tests.trainer.distil.test_loop import changed
from tests.trainer.models import VOCAB, answers, random_prompts, tiny_llama
from trainer.distil.distil import distil
from trainer.distil.scores import score
from trainer.worker.rollback_watch import RollbackWatch

N = 10


@pytest.fixture
def watching(settings: Settings) -> Settings:
    return changed(settings, "gate", watch_requests=N)


def publish(store: Store, model: PreTrainedModel) -> DraftVersion:
    """Make a model current, whatever a gate would say."""
    parent = store.versions.current("default").id
    version = store.versions.stage("default", parent, "full", lambda folder: model.save_pretrained(folder))
    return store.versions.promote(version.id)


def noisy(model: PreTrainedModel, amount: float, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    worse = copy.deepcopy(model)
    head = worse.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.add_(torch.randn(VOCAB, 32), alpha=amount)
    return worse


@pytest.fixture
def good(all_answers: Sequence[RequestSamples]) -> PreTrainedModel:
    """A draft that knows the traffic."""
    model = tiny_llama(2)
    distil(model, all_answers[:60], LearnSettings(epochs=8, learning_rate=5e-3, batch_tokens=256))
    return model


def test_a_worse_version_is_taken_back(
    drafted: Store, watching: Settings, traffic: Traffic, good: PreTrainedModel
) -> None:
    first = publish(drafted, good)
    second = publish(drafted, noisy(good, 0.3))
    traffic(N)
    back = RollbackWatch(drafted, watching, "default").compare_if_due()
    assert back is not None and back.id == first.id == drafted.versions.current("default").id
    fallen = drafted.versions.get(second.id)
    assert fallen.state is VersionState.ROLLED_BACK
    assert "newest 10 requests" in fallen.evidence["rolled_back"]["reason"]


def test_before_enough_requests_came_nothing_is_judged(
    drafted: Store, watching: Settings, traffic: Traffic, good: PreTrainedModel
) -> None:
    traffic(3 * N)
    publish(drafted, good)
    publish(drafted, noisy(good, 0.3))
    traffic(N - 1)
    watch = RollbackWatch(drafted, watching, "default")
    assert watch.compare_if_due() is None and watch.newest is None


def test_a_harder_domain_is_no_reason_to_go_back(
    drafted: Store, watching: Settings, traffic: Traffic, good: PreTrainedModel
) -> None:
    """The traffic moves to a target that neither version knows; acceptance falls by half, and the version stays."""
    publish(drafted, good)
    better = copy.deepcopy(good)
    easy = traffic(2 * N)
    distil(better, easy, LearnSettings(epochs=4, learning_rate=2e-3))
    version = publish(drafted, better)
    hard = [
        replace(s, request_id=new_id(), created_at=now()) for s in answers(tiny_llama(9), random_prompts(2 * N, seed=5))
    ]
    drafted.samples.add(hard)
    scores = [score(better, some) for some in (easy, hard)]
    before, after = (s.expected.sum() / s.positions.sum() for s in scores)
    assert after < 0.6 * before
    watch = RollbackWatch(drafted, watching, "default")
    assert watch.compare_if_due() is None and watch.newest is not None and watch.newest.requests == 2 * N
    assert drafted.versions.current("default").id == version.id


def test_versions_that_follow_each_other_quickly_are_held_against_an_older_one(
    drafted: Store, watching: Settings, traffic: Traffic, good: PreTrainedModel
) -> None:
    sound = publish(drafted, good)
    watch, back = RollbackWatch(drafted, watching, "default"), []
    for seed in range(2):  # neither serves for N requests
        publish(drafted, noisy(good, 0.3, seed))
        traffic(N // 2)
        back.append(watch.compare_if_due())
    assert back[0] is None and back[1] is not None and back[1].id == sound.id


def test_looks_are_taken_when_requests_have_doubled_and_at_halved_levels(
    drafted: Store, watching: Settings, traffic: Traffic, good: PreTrainedModel
) -> None:
    publish(drafted, good)
    publish(drafted, noisy(good, 1e-4))
    watch, levels = RollbackWatch(drafted, watching, "default"), []
    for _ in range(8):
        traffic(N // 2)
        watch.newest = None
        watch.compare_if_due()
        levels.append(None if watch.newest is None else (watch.newest.requests, watch.newest.confidence))
    assert [level and level[0] for level in levels] == [None, N, None, 2 * N, None, None, None, 4 * N]
    np.testing.assert_allclose([1 - level[1] for level in levels if level], [5e-4, 2.5e-4, 1.25e-4])


def test_the_root_is_never_taken_back(drafted: Store, watching: Settings, traffic: Traffic) -> None:
    traffic(3 * N)
    assert RollbackWatch(drafted, watching, "default").compare_if_due() is None


def test_a_parent_that_was_itself_taken_back_is_no_place_to_go(
    drafted: Store, watching: Settings, traffic: Traffic, good: PreTrainedModel, tmp_path: Path
) -> None:
    parent = publish(drafted, good)
    publish(drafted, noisy(good, 0.3))
    drafted.versions.quarantine(parent.id, "its files rotted")
    traffic(N)
    assert RollbackWatch(drafted, watching, "default").compare_if_due() is None


def test_equal_versions_are_seldom_taken_back(good: PreTrainedModel) -> None:
    """1,000 looks at level 0.0005 with heavy per-request noise: more than 5 false alarms once in 70,000."""
    from trainer.distil.gate import compare

    rng = np.random.default_rng(0)
    positions = rng.integers(8, 64, (1000, 40)).astype(float)
    change = positions * rng.normal(0, 0.1, (1000, 40))
    alarms = sum(compare(p, 0.5 * p, 0.5 * p + c, 1 - 0.0005).lower > 0 for p, c in zip(positions, change, strict=True))
    assert alarms <= 5
