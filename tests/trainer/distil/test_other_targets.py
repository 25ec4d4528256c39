"""Targets that osd's engine refuses are read all the same: models that see, by their text, and recurrent ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from osd.attached.passes import PlainScorer
from osd.hotswap.new_draft import new_feature_version
from osd.models.features.target import FeatureTarget
from osd.models.model_digest import model_digest
from osd.models.pair import load_model, load_reader
from storage.errors import CannotServeRagged
from storage.records import RequestSamples, RunState, new_id, now
from storage.settings import Settings
from storage.store import Store
from tests.support.other_targets import IMAGE, VIDEO, recurrent, vision_language
from tests.support.plain_chains import require_own
from tests.trainer.models import answers, random_prompts
from trainer.distil.collate import collate
from trainer.distil.loop import run_once
from trainer.distil.teacher import RecomputeTeacher

CPU = torch.device("cpu")
TARGETS: dict[str, Callable[[], Any]] = {"vision_language": vision_language, "recurrent": recurrent}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A target's folder."""
    TARGETS[request.param]().save_pretrained(tmp_path / "target")
    return tmp_path / "target"


def texts(module: Any, count: int) -> list[RequestSamples]:
    """What a target says to prompts of several lengths, as texts alone."""
    prompts = [prompt[: 2 + i % 4] for i, prompt in enumerate(random_prompts(count))]
    return [
        replace(
            s, topk_ids=s.topk_ids[:, :0], topk_logprobs=s.topk_logprobs[:, :0], outside=np.ones_like(s.outside)
        )
        for s in answers(module, prompts, 12)
    ]  # fmt: skip


def test_a_recurrent_target_is_read_though_it_is_not_served(tmp_path: Path) -> None:
    recurrent().save_pretrained(tmp_path)
    with pytest.raises(CannotServeRagged, match="recurrent state"):
        load_model(tmp_path, CPU)
    assert load_reader(tmp_path, CPU).config.model_type == "qwen3_next"


def test_states_and_distributions_of_a_batch_are_those_of_each_text_alone(target: Path) -> None:
    shared = FeatureTarget(load_reader(target, CPU))
    samples = texts(shared.module, 3)
    batch = RecomputeTeacher(shared, (1, 2)).complete(collate(samples), samples)
    require_own(batch, shared, samples, (1, 2))


def test_texts_with_images_are_not_read() -> None:
    module = vision_language()
    (text,) = texts(module, 1)
    teacher = RecomputeTeacher(FeatureTarget(module), (2,))
    tokens = text.tokens.copy()
    tokens[0] = IMAGE
    assert teacher.can_read(text) and not teacher.can_read(replace(text, tokens=tokens))


def test_what_comes_without_distributions_is_read_in_one_pass(target: Path) -> None:
    shared = FeatureTarget(load_reader(target, CPU))
    tokens = torch.randint(2, 90, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    scorer = PlainScorer(shared, 5, 64)
    tops, states = scorer.with_states(tokens, 7)
    said: Any = shared.module(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    values, ids = said.logits[0].log_softmax(-1)[6:-1].topk(5)
    assert (tops.ids == ids.numpy()).all() and np.allclose(tops.logprobs, values.numpy(), atol=1e-4)
    assert np.allclose(states, said.hidden_states[-1][0, 6:-1].numpy(), atol=2e-2)
    assert (scorer(tokens, 7).ids == tops.ids).all()


def test_a_draft_of_such_a_target_learns_from_its_texts(store: Store, settings: Settings, target: Path) -> None:
    settings = settings.changed(
        serve={"target": str(target)}, learn={"teacher": "recompute", "epochs": 6}, gate={"confidence": 0.6}
    )
    root = new_feature_version(store, "default", str(target), "eagle")
    digest = model_digest(str(target))
    assert digest is not None
    told = texts(load_reader(target, CPU), 40)
    for s in told:
        store.samples.add([replace(s, request_id=new_id(), created_at=now(), target=digest, draft_version=root.id)])
    run = run_once(store, settings, "default", "me")
    assert run is not None and run.state is RunState.PUBLISHED, run and run.result
    seen = {IMAGE, VIDEO} if "qwen2_5_vl" in (target / "config.json").read_text() else set[int]()
    assert run.result["unusable"] <= sum(not seen.isdisjoint(s.tokens.tolist()) for s in told)
