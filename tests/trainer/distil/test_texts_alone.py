"""Requests of which texts alone are kept: a target that reads them again teaches from them as from any other, and what
learns recorded distributions leaves them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.new import new_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.model_digest import model_digest
from storage.errors import BadInput, BadSetting
from storage.records import RequestSamples, RunState, new_id, now
from storage.replay.exports import write_export
from storage.sampling import GREEDY
from storage.settings import LearnSettings, Settings
from storage.store import Store
from tests.trainer.conftest import Traffic
from tests.trainer.feature_drafts import KINDS, answered, feature_draft, tiny_target, with_states
from tests.trainer.models import VOCAB, tiny_llama
from trainer.distil.collate import collate
from trainer.distil.data import Readable, is_usable
from trainer.distil.epoch import Epoch
from trainer.distil.feature_losses import FeatureLosses
from trainer.distil.gate import comparable, score_both
from trainer.distil.loop import run_once
from trainer.distil.offline import DrawnWith, SampleSelection, distil_offline
from trainer.distil.rank_files import pack, unpack
from trainer.distil.scores import score
from trainer.distil.step import Losses
from trainer.distil.teacher import Lessons, RecomputeTeacher, RecordedTeacher
from trainer.routes.compare import rank_drafts

STEPS = 3
CPU = torch.device("cpu")


def text_alone(samples: RequestSamples) -> RequestSamples:
    """The same request as it is kept of an engine that was asked for no distributions."""
    m = len(samples)
    return replace(
        samples, topk_ids=np.empty((m, 0), np.int32), topk_logprobs=np.empty((m, 0), np.float16),
        outside=np.ones(m, np.float32),
    )  # fmt: skip


@cache
def whole() -> list[RequestSamples]:
    """Answers of several lengths, with distributions."""
    return [answered(tiny_target(), 6, new)[i] for i, new in enumerate((9, 5, 7, 12, 3, 8))]


def mixed(which: str) -> list[RequestSamples]:
    """The same; where ``which`` says t the text alone."""
    return [text_alone(s) if letter == "t" else s for s, letter in zip(whole(), which, strict=True)]


def draft_of(kind: str) -> tuple[nn.Module, Losses, Lessons]:
    """A draft, what it is trained on, and its teacher."""
    shared, learn = FeatureTarget(tiny_target()), LearnSettings(steps=STEPS, teacher="recompute")
    if kind == "causal":
        model = tiny_llama(2)
        return model, Losses(model, learn), Lessons(RecomputeTeacher(shared), STEPS)
    draft = feature_draft(kind, shared.module)
    teacher = RecomputeTeacher(shared, draft.feature_layers(shared.module))
    return draft, FeatureLosses(draft, learn, shared), Lessons(teacher, STEPS)


def stepped(kind: str, samples: Sequence[RequestSamples]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loss of one step over these requests, and its gradients."""
    model, losses, lessons = draft_of(kind)
    readable = Readable(VOCAB, lessons=lessons).among(samples)
    assert len(readable) == len(samples)
    epoch = Epoch.of(model, readable, LearnSettings(), texts=True)
    batch = epoch.batch(range(len(readable)), min(s.k for s in readable), lessons.teacher)
    loss = losses(batch)
    loss.backward()
    return loss.detach(), [each.grad for each in model.parameters() if each.grad is not None]


@pytest.mark.parametrize("which", ["t.t..t", "tttttt"])
@pytest.mark.parametrize("kind", [*KINDS, "causal"])
def test_a_step_over_texts_is_the_step_over_all_that_could_be_kept(kind: str, which: str) -> None:
    loss, gradients = stepped(kind, whole())
    other, others = stepped(kind, mixed(which))
    assert loss == other and gradients and len(gradients) == len(others)
    assert all(torch.equal(one, two) for one, two in zip(gradients, others, strict=True))


@pytest.mark.parametrize("kind", [*KINDS, "causal"])
def test_scores_and_the_gates_measure_are_the_same_too(kind: str) -> None:
    model, _, lessons = draft_of(kind)
    expected, found = (score(model, some, lessons=lessons) for some in (whole(), mixed(".tt.t.")))
    for name in ("positions", "expected", "unknown", "agreement"):
        assert (getattr(found, name) == getattr(expected, name)).all()
    pair = score_both(model, model, mixed(".tt.t."), lessons=lessons)
    assert pair is not None and pair.measure == "expected_acceptance"
    assert (pair.after.expected == expected.expected).all()


def test_what_learns_recorded_distributions_leaves_texts_out() -> None:
    some = mixed("t.t..t")
    assert all(is_usable(s, VOCAB) for s in some)
    assert [s.k for s in Readable(VOCAB).among(some)] == [8, 8, 8]
    module = tiny_target()
    states, shared = with_states(module, some), FeatureTarget(module)
    teacher = RecordedTeacher(shared, (shared.layers,))
    assert [s.k for s in Readable(VOCAB, lessons=Lessons(teacher, STEPS)).among(states)] == [8, 8, 8]
    assert not is_usable(replace(some[0], tokens=some[0].tokens + VOCAB), VOCAB)
    assert comparable(some)[0] == "agreement" and {s.k for s in comparable(some)[1]} == {1}


def test_processes_that_distil_together_are_given_them_as_they_are() -> None:
    again = unpack(pack(mixed("t.tt..")))
    assert [s.k for s in again] == [0, 8, 0, 0, 8, 8] and collate(again).topk_ids.shape[1] == 0
    assert all((one.tokens == s.tokens).all() for one, s in zip(again, whole(), strict=True))


@pytest.fixture
def taught(settings: Settings, tmp_path: Path) -> Settings:
    """Settings of a trainer whose target teaches."""
    tiny_target().save_pretrained(tmp_path / "target")
    return settings.changed(serve={"target": str(tmp_path / "target")}, learn={"teacher": "recompute"})


def test_a_run_learns_from_texts_that_a_target_reads_again(drafted: Store, taught: Settings) -> None:
    digest = model_digest(str(taught.serve.target))
    assert digest is not None
    for place, s in enumerate(answered(tiny_target(), 40)):
        kept = s if place % 3 == 0 else text_alone(s)
        drafted.samples.add([replace(kept, request_id=new_id(), created_at=now(), target=digest)])
    drafted.targets.arrive(digest, "target")
    run = run_once(drafted, taught, "default", "me")
    assert run is not None and run.state is RunState.PUBLISHED, run
    evidence = drafted.versions.current("default").evidence
    assert run.result["unusable"] == 0 and evidence["measure"] == "expected_acceptance"
    assert evidence["unknown_after"] == 0.0 and evidence["after"] > evidence["before"]


def texts(samples: Sequence[RequestSamples]) -> dict[str, Any]:
    """What makes requests of texts alone of those that are sent."""
    alone = text_alone(samples[0])
    return {name: getattr(alone, name) for name in ("topk_ids", "topk_logprobs", "outside")}


def test_a_run_on_recorded_distributions_goes_on_with_the_others_and_says_what_would_learn_from_texts(
    drafted: Store, settings: Settings, traffic: Traffic, all_answers: list[RequestSamples]
) -> None:
    traffic(24, held_out=False)
    traffic(6, held_out=False, **texts(all_answers)), traffic(1, held_out=True, **texts(all_answers))
    run = run_once(drafted, settings, "default", "me")
    assert run is not None and run.state is RunState.PUBLISHED, run
    assert (run.result["claimed"], run.result["unusable"]) == (24, 6)
    assert (run.result["evidence"]["held_out"], run.result["evidence"]["trained_on"]) == (0, 4)
    traffic(8, held_out=False, **texts(all_answers))
    nothing = run_once(drafted, settings.changed(learn={"replay_requests": 0}), "default", "me")
    assert nothing is not None and nothing.state is RunState.REJECTED
    assert "learn.teacher = recompute learns from texts alone" in nothing.result["reason"]
    assert run_once(drafted, settings, "default", "me") is None, "they are not tried again"


def test_offline_a_draft_of_hidden_states_learns_texts_alone(settings: Settings, tmp_path: Path) -> None:
    module = tiny_target()
    module.save_pretrained(tmp_path / "target")
    target = FeatureTarget(module, str(tmp_path / "target"), model_digest(tmp_path / "target"))
    save_feature_draft(new_feature_draft("eagle", target), tmp_path / "draft", target)
    some = [text_alone(each) for each in answered(module, 24, 12)]
    write_export(tmp_path / "texts.parquet", [some[:18]], overwrite=False)
    own = settings.changed(serve={"target": target.name}, learn={"epochs": 6, "batch_positions": 32})
    chosen = SampleSelection(tmp_path / "texts.parquet")
    done = distil_offline(own, tmp_path / "draft", tmp_path / "out", chosen)
    assert done["requests"] == 18 and done["loss_last"] < done["loss_first"]
    lessons = Lessons(RecomputeTeacher(target, [target.layers]), STEPS)
    before, after = (load_feature_draft(tmp_path / name, target) for name in ("draft", "out"))
    expected = [score(draft, some[18:], lessons=lessons).expected.sum() for draft in (before, after)]
    assert expected[1] > 1.05 * expected[0]
    with pytest.raises(BadSetting, match=r"serve\.target"):
        distil_offline(settings, tmp_path / "draft", tmp_path / "other", chosen)
    with pytest.raises(BadInput, match="leave the target out"):
        distil_offline(own, tmp_path / "draft", tmp_path / "other", chosen, drawn=DrawnWith(target.name, GREEDY))
    assert not (tmp_path / "other").exists()


def test_offline_and_between_drafts_texts_alone_spoil_nothing(
    drafted: Store, settings: Settings, traffic: Traffic, draft_folder: Path, tmp_path: Path,
    all_answers: list[RequestSamples],
) -> None:  # fmt: skip
    sent = traffic(12) + traffic(6, **texts(all_answers))
    fit = rank_drafts(drafted, sent, CPU)[0]
    assert fit.requests == 18 and fit.acceptance > 0
    done = distil_offline(settings, draft_folder, tmp_path / "out", SampleSelection())
    assert done["requests"] == 12 and done["loss_last"] < done["loss_first"]
    only = SampleSelection(requests=6)
    with pytest.raises(BadInput, match="no samples"):
        distil_offline(settings, draft_folder, tmp_path / "other", only)
