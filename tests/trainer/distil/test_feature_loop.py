"""Feature drafts through the whole learning half: claimed, taught, gated by chains on held-out texts, published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from osd.hotswap.new_draft import new_feature_version
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.new import new_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.model_digest import model_digest
from storage.errors import BadInput, BadSetting, FeaturesNotKept
from storage.records import DraftVersion, RequestSamples, RunState, TrainingRun, new_id, now
from storage.replay.segment_files import is_held_out
from storage.settings import Settings
from storage.store import Store
from tests.support.params import some_of
from tests.trainer.conftest import HOLDOUT
from tests.trainer.feature_drafts import KINDS, answered, tiny_target, with_states
from trainer.distil.draft_learner import DraftLearner
from trainer.distil.loop import run_once
from trainer.distil.optimizer import first_learn
from trainer.distil.resident import ResidentModels
from trainer.worker.rollback_watch import RollbackWatch


@pytest.fixture(scope="module")
def all_texts() -> list[RequestSamples]:
    """What the target says to 90 prompts, with its hidden states."""
    target = tiny_target()
    return with_states(target, answered(target, 90, 12))


@pytest.fixture
def target(tmp_path: Path) -> FeatureTarget:
    folder = tmp_path / "target"
    module = tiny_target()
    module.save_pretrained(folder)
    return FeatureTarget(module, str(folder), model_digest(folder))


@pytest.fixture
def taught(settings: Settings, target: FeatureTarget) -> Settings:
    """Settings of a trainer whose target teaches."""
    return settings.changed(serve={"target": target.name}, learn={"teacher": "recompute", "steps": 3, "epochs": 8})


def register(store: Store, target: FeatureTarget, folder: Path, kind: str) -> None:
    """Make a draft of random weights number 0 of ``default``."""
    save_feature_draft(new_feature_draft(kind, target, heads=3), folder, target)  # type: ignore[arg-type]
    store.versions.register_root("default", folder, target=target.digest)


def send(store: Store, target: FeatureTarget, some: Sequence[RequestSamples], held_out: bool, count: int) -> None:
    """Put requests of one side of the split into the store."""
    chosen = [each for each in some if is_held_out(each, HOLDOUT) == held_out][:count]
    assert len(chosen) == count
    store.samples.add([replace(s, request_id=new_id(), created_at=now(), target=target.digest) for s in chosen])


def trained(store: Store, settings: Settings, resident: ResidentModels | None = None) -> TrainingRun:
    run = run_once(store, settings, "default", "me", resident=resident)
    assert run is not None
    return run


@pytest.mark.parametrize("kind", some_of(KINDS, "eagle3", "mtp"))
def test_a_draft_of_random_weights_learns_from_what_the_target_reads_again(
    store: Store, taught: Settings, target: FeatureTarget, all_texts: list[RequestSamples], tmp_path: Path, kind: str
) -> None:
    register(store, target, tmp_path / "zero", kind)
    plain = [replace(s, hidden_states=None) for s in all_texts]
    send(store, target, plain, held_out=False, count=60), send(store, target, plain, held_out=True, count=5)
    run = trained(store, taught)
    assert run.state is RunState.PUBLISHED, run.result
    version = store.versions.current("default")
    assert (version.kind, version.number) == (kind, 1)
    evidence = version.evidence
    assert evidence["held_out"] == 5 and evidence["trained_on"] == 0
    assert evidence["after"] > evidence["before"] + 0.02 and evidence["unknown_after"] == 0.0
    loaded = load_feature_draft(store.versions.folder(version), target)
    assert loaded.kind == kind and not (store.versions.folder(version) / "embed_tokens.safetensors").exists()
    size = sum(path.stat().st_size for path in store.versions.folder(version).glob("*.safetensors"))
    assert size < loaded.weight_bytes + 8192, "the target's embeddings and output layer are never written"


@pytest.mark.parametrize(("kind", "first"), [("eagle", 0.8), ("dflash", 0.4)])
def test_a_new_draft_has_a_higher_rate_in_its_first_run_alone(
    store: Store, taught: Settings, target: FeatureTarget, all_texts: list[RequestSamples], kind: str, first: float
) -> None:
    new_feature_version(store, "default", target.name, kind)  # type: ignore[arg-type]
    own, rates = taught.changed(learn={"epochs": 1, "learning_rate": None}, gate={"min_gain": -1.0}), list[float]()

    class SeenLearner(DraftLearner):
        def stage(self, facts: dict[str, Any]) -> DraftVersion:
            rates.append(self._optimizer.param_groups[0]["initial_lr"] * target.hidden_size)
            return super().stage(facts)

    for _ in range(2):
        send(store, target, all_texts, held_out=False, count=20), send(store, target, all_texts, held_out=True, count=4)
        run = run_once(store, own, "default", "me", learner=SeenLearner)
        assert run is not None and run.state is RunState.PUBLISHED
    assert rates == pytest.approx([first, 0.4])
    assert first_learn(tiny_target(), own.learn) is own.learn, "a draft of its own layers"
    set_by_hand = own.changed(learn={"learning_rate": 1e-4}).learn
    assert first_learn(new_feature_draft("eagle", target), set_by_hand) is set_by_hand


@pytest.mark.parametrize("kind", some_of(KINDS, "eagle"))
def test_a_target_in_bfloat16_teaches_drafts_that_are_proven_as_they_are_served(
    store: Store, taught: Settings, target: FeatureTarget, all_texts: list[RequestSamples], tmp_path: Path, kind: str
) -> None:
    register(store, target, tmp_path / "zero", kind)
    send(store, target, [replace(s, hidden_states=None) for s in all_texts], held_out=False, count=16)
    run = trained(store, taught.changed(serve={"dtype": "bfloat16"}, learn={"epochs": 1}, gate={"min_gain": -1.0}))
    assert run.state is RunState.PUBLISHED, run.result


def test_runs_go_on_from_each_other_in_memory_and_the_watch_compares_them_by_the_same_chains(
    store: Store, taught: Settings, target: FeatureTarget, all_texts: list[RequestSamples], tmp_path: Path
) -> None:
    register(store, target, tmp_path / "zero", "eagle")
    resident = ResidentModels(limit_mb=64)
    send(store, target, all_texts, held_out=True, count=5)
    for begin in (0, 20):
        send(store, target, all_texts[begin:], held_out=False, count=16)
        assert trained(store, taught, resident).state is RunState.PUBLISHED
    second = store.versions.current("default")
    assert second.number == 2 and second.parent is not None
    assert second.evidence["after"] > second.evidence["before"]
    assert store.runs.list("default", limit=1)[0].result["started_from"] == second.parent
    zero, ids = store.versions.list("default")[0], store.samples.recent("default", limit=20)
    found = RollbackWatch(store, taught, "default")._compare(second, zero, ids)
    assert found.requests == 20 and found.after < found.before  # the one of random weights is the worse one
    assert RollbackWatch(store, taught, "default").compare_if_due() is None


def test_recorded_hidden_states_teach_without_the_targets_layers(
    store: Store, taught: Settings, target: FeatureTarget, all_texts: list[RequestSamples], tmp_path: Path
) -> None:
    register(store, target, tmp_path / "zero", "medusa")
    send(store, target, all_texts, held_out=False, count=60), send(store, target, all_texts, held_out=True, count=5)
    resident = ResidentModels(limit_mb=64)
    run = trained(store, taught.changed(learn={"teacher": "recorded"}), resident)
    evidence = run.result["evidence"]
    assert evidence["after"] > evidence["before"] and evidence["unknown_after"] > 0, run.result
    shared = resident.teachers._shared
    assert shared is not None and not list(shared.module.model.layers.parameters())


def test_features_asked_of_a_store_that_has_none(
    store: Store, taught: Settings, target: FeatureTarget, all_texts: list[RequestSamples], tmp_path: Path
) -> None:
    register(store, target, tmp_path / "zero", "eagle")
    send(store, target, [replace(s, hidden_states=None) for s in all_texts], held_out=False, count=8)
    with pytest.raises(FeaturesNotKept, match=r"serve\.record_hidden_states"):
        run_once(store, taught.changed(learn={"teacher": "recorded"}), "default", "me")
    (failed,) = store.runs.list("default")
    assert failed.state is RunState.FAILED and "serve.record_hidden_states" in failed.result["reason"]
    assert trained(store, taught).state in (RunState.PUBLISHED, RunState.REJECTED)  # the requests were free again


def test_another_target_or_none_is_refused_by_name(
    store: Store, taught: Settings, target: FeatureTarget, all_texts: list[RequestSamples], tmp_path: Path
) -> None:
    register(store, target, tmp_path / "zero", "eagle")
    send(store, target, all_texts, held_out=False, count=8)
    tiny_target(seed=5).save_pretrained(tmp_path / "other")
    with pytest.raises(BadSetting, match=r"serve.target.*is about the target"):
        run_once(store, taught.changed(serve={"target": str(tmp_path / "other")}), "default", "me")
    with pytest.raises(BadSetting, match=r"serve\.target"):
        run_once(store, taught.changed(serve={"target": None}), "default", "me")
    with pytest.raises(BadSetting, match=r"learn\.positions"):
        run_once(store, taught.changed(learn={"teacher": "recorded", "positions": "rejected"}), "default", "me")


def test_an_adapter_is_refused_by_name(
    store: Store, taught: Settings, target: FeatureTarget, all_texts: list[RequestSamples], tmp_path: Path
) -> None:
    register(store, target, tmp_path / "zero", "medusa")
    send(store, target, all_texts, held_out=False, count=8)
    with pytest.raises(BadSetting, match=r"learn\.method: default: a draft of kind medusa takes no adapter.*\(full\)"):
        run_once(store, taught.changed(learn={"method": "lora"}), "default", "me")
    assert store.samples.waiting("default").requests == 8
    with pytest.raises(BadInput, match=r"default: a draft of kind medusa takes no adapter"):
        store.versions.set_options("default", {"method": "lora", "lora_rank": 4})
    assert store.versions.set_options("default", {"method": "full"}) == store.versions.options("default")
    run = trained(store, taught.changed(learn={"method": "lora"}))
    assert run.state in (RunState.PUBLISHED, RunState.REJECTED) and run.settings["method"] == "full"


def test_an_ordinary_draft_may_learn_from_whole_distributions(
    drafted: Store, taught: Settings, target: FeatureTarget, all_texts: list[RequestSamples]
) -> None:
    send(drafted, target, all_texts, held_out=False, count=30), send(drafted, target, all_texts, held_out=True, count=5)
    drafted.targets.arrive(str(target.digest), "target")
    run = trained(drafted, taught)
    assert run.state is RunState.PUBLISHED, run.result
    assert drafted.versions.current("default").evidence["unknown_after"] == 0.0


def test_the_draft_vocabulary_is_chosen_anew_for_each_version(
    store: Store, taught: Settings, target: FeatureTarget, all_texts: list[RequestSamples], tmp_path: Path
) -> None:
    register(store, target, tmp_path / "zero", "eagle")
    send(store, target, all_texts, held_out=True, count=5)
    maps = []
    for begin, size in ((0, 20), (20, 24), (0, None)):
        send(store, target, all_texts[begin:], held_out=False, count=16)
        run = trained(store, taught.changed(learn={"draft_vocabulary": size}))
        maps.append(load_feature_draft(store.versions.folder(store.versions.get(str(run.version))), target).token_map)
    assert [None if each is None else len(each) for each in maps] == [20, 24, None]
    ends = {1}
    used = np.concatenate([s.tokens[s.prompt_len :] for s in all_texts])
    counts = np.bincount(used, minlength=48)
    assert ends <= set(maps[0].tolist())
    assert counts[maps[1]].sum() > 0.8 * counts.sum()
    assert torch.equal(maps[1], maps[1].sort().values)
