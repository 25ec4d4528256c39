"""Learning under a successor: the earlier target's samples teach as far as both agree, its drafts are judged first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage.names import line_name
from storage.records import RequestSamples, VersionState
from storage.runs import ClaimTerms
from storage.settings import LearnSettings, Settings
from storage.sql.tables import RunRow
from storage.store import Store
from tests.trainer.conftest import Traffic
from tests.trainer.models import VOCAB, tiny_llama
from trainer.distil.branching import SampleWeights
from trainer.distil.data import Readable, gather
from trainer.distil.distil import distil
from trainer.distil.heirs import judge_waiting_heir
from trainer.distil.rank_files import pack, unpack
from trainer.distil.teachers import Teachers

A, B = "a" * 64, "b" * 64
LINE = line_name("default", B)


@pytest.fixture
def moved(drafted: Store, draft_folder: Path) -> Store:
    """The store once its target A was succeeded by B."""
    for target in (A, B):
        drafted.targets.arrive(target, target[:2], {"architecture": "llama", "vocabulary": "v"})
        drafted.versions.register_root("default", draft_folder, target=target)
    drafted.targets.succeed(A, B)
    return drafted


@pytest.mark.parametrize(("divergence", "weight"), [(None, 0.0), (0.0, 1.0), (0.25, 0.5), (0.6, 0.0)])
def test_an_earlier_targets_samples_weigh_what_both_have_in_common(
    moved: Store, settings: Settings, traffic: Traffic, divergence: float | None, weight: float
) -> None:
    old = {one.request_id for one in traffic(6, held_out=False, target=A)}
    new = {one.request_id for one in traffic(8, held_out=False, target=B)}
    if divergence is not None:
        moved.targets.note_divergence(B, A, {"default": divergence})
    run = moved.runs.claim(LINE, "me", ClaimTerms(8, 60.0, 60.0))
    assert run is not None and set(run.request_ids) == new
    found = gather(moved, run, settings.learn, Readable(VOCAB))
    assert {one.request_id for one in found.inherited} == (old if weight else set())
    assert {one.weight for one in found.inherited} <= {weight} and {one.weight for one in found.claimed} == {1.0}
    with moved.db.session(read_only=True) as session:
        replayed = set(session.get_one(RunRow, run.id).replayed)
    assert replayed == (old if weight else set()), "`osd replay forget` would miss them"
    for one in found.all:
        assert np.allclose(SampleWeights().at(one), one.weight)
    assert [one.weight for one in unpack(pack(found.all))] == [one.weight for one in found.all]


def test_what_weighs_nothing_changes_nothing(all_answers: Sequence[RequestSamples]) -> None:
    """Half the weight is half the pull."""
    learn = LearnSettings(epochs=1, learning_rate=1e-3, batch_tokens=4096, batch_positions=4096, clip_norm=1e9)
    some, other = all_answers[:4], [replace(one, tokens=one.tokens[::-1].copy()) for one in all_answers[4:8]]

    def loss(weight: float) -> float:
        return distil(tiny_llama(2), [*some, *(replace(one, weight=weight) for one in other)], learn).loss_first

    assert loss(0.5) == pytest.approx((loss(0.0) + loss(1.0)) / 2, rel=1e-4)


def test_an_heir_is_judged_by_what_its_own_target_answers(
    moved: Store, settings: Settings, traffic: Traffic, all_answers: Sequence[RequestSamples]
) -> None:
    good = tiny_llama(2)
    distil(good, all_answers[:40], LearnSettings(epochs=6, learning_rate=5e-3, batch_tokens=256))
    root = moved.versions.current("default", A)
    staged = moved.versions.stage("default", root.id, "full", lambda folder: good.save_pretrained(folder))
    moved.versions.promote(staged.id)
    traffic(6, target=A)
    assert judge_waiting_heir(moved, settings, LINE, Teachers()) is None, "nothing is known of B"
    assert moved.versions.current("default", B).number == 0
    traffic(6, target=B)
    judged = judge_waiting_heir(moved, settings, LINE, Teachers())
    assert judged is not None and judged.evidence["heir_of"] == staged.id and judged.evidence["judged_on"] == B
    assert judged.evidence["after"] > judged.evidence["before"] and judged.state is VersionState.READY
    assert moved.versions.current("default", B).id == judged.id
    assert judge_waiting_heir(moved, settings, LINE, Teachers()) is None
    assert judge_waiting_heir(moved, settings, "default", Teachers()) is None
