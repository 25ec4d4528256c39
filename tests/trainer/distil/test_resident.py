"""Models that stay between runs change nothing but what is read; weights are stored as they are served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import trainer.distil.checkpoints
from storage.records import RequestSamples, RunState, new_id
from storage.settings import LearnSettings, Settings
from storage.store import Store, open_store
from tests.trainer.conftest import quick
from tests.trainer.models import tiny_llama
from trainer.distil import draft_learner
from trainer.distil.checkpoints import load_current, load_trainable, stored_as
from trainer.distil.loop import run_once
from trainer.distil.resident import ResidentModels

CPU = torch.device("cpu")
RUNS = 2
LOOSE = {"float32": 1e-4, "bfloat16": 1e-2, "lora": 1e-4}
"""Weights are about 0.3. Where tensors lie in memory changes the last digits of a sum, and so of each step."""


@pytest.fixture(params=["float32", "bfloat16", "lora"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def learned(
    folder: Path, kind: str, settings: Settings, said: Sequence[RequestSamples], resident: ResidentModels | None
) -> Store:
    """A store after a few runs over what was said."""
    model = tiny_llama(2)
    (model.to(torch.bfloat16) if kind == "bfloat16" else model).save_pretrained(folder / "draft")
    settings = settings.changed(storage={"directory": folder / "data"}, gate={"confidence": 0.6})
    if kind == "lora":
        settings = settings.changed(learn={"method": "lora", "lora_rank": 4})
    store, kept = open_store(settings), resident or ResidentModels()
    store.versions.register_root("default", folder / "draft")
    for number in range(RUNS):
        store.samples.add(said[16 * number : 16 * number + 16])
        run = run_once(store, settings, "default", "me", resident=kept)
        assert run is not None and run.state is RunState.PUBLISHED
    assert store.versions.current("default").number == RUNS
    return store


@pytest.fixture(scope="module")
def said(all_answers: Sequence[RequestSamples]) -> list[RequestSamples]:
    return [replace(one, request_id=new_id(), created_at=float(i)) for i, one in enumerate(all_answers)]


@pytest.fixture(scope="module")
def halves(said: list[RequestSamples], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Any]]:
    """A store whose draft is of half the numbers' width, after a few runs, and what stayed in memory."""
    folder, resident = tmp_path_factory.mktemp("halves"), ResidentModels(64)
    store = learned(folder, "bfloat16", quick(folder / "data"), said, resident)
    yield store, resident
    store.close()


def test_a_draft_learns_the_same_whether_its_models_stay_or_are_read_each_run(
    kind: str, settings: Settings, said: list[RequestSamples], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    before = learned(tmp_path / "one", kind, settings, said, None)
    reads: list[Path] = []
    real = trainer.distil.checkpoints.read_weights
    monkeypatch.setattr(
        trainer.distil.checkpoints, "read_weights", lambda path, dtype: (reads.append(path), real(path, dtype))[1]
    )
    after = learned(tmp_path / "other", kind, settings, said, ResidentModels(64))
    assert {Path(path).parent.name for path in reads} == {"default"}
    assert len(reads) == (2 if kind != "lora" else RUNS + 1), "the first run's, and what merging adapters takes"
    one, other = (load_current(store, store.versions.current("default"), CPU) for store in (before, after))
    for weight, same in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(weight, same, rtol=0, atol=LOOSE[kind])
    for store in (before, after):
        store.close()


def test_what_is_stored_has_the_checkpoints_own_type_and_training_goes_on_in_float32(
    halves: tuple[Store, Any],
) -> None:
    store, resident = halves
    root, *versions = store.versions.list("default")
    newest = versions[-1]
    for version in versions:
        tensors = load_file(store.versions.folder(version) / "model.safetensors")
        assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
        assert version.bytes is not None and root.bytes is not None and version.bytes < 1.05 * root.bytes
    loaded, kept = load_trainable(store, newest, LearnSettings(), CPU), resident.take_trained(newest, CPU)
    assert kept is not None
    for name, weight in kept.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], weight, rtol=0, atol=0)
    assert any(not torch.equal(w, w.to(torch.bfloat16).float()) for w in kept.parameters()), "more than is served"
    served = load_current(store, newest, CPU)
    for weight, rounded in zip(
        served.parameters(), stored_as(kept, store.versions.folder(root)).parameters(), strict=True
    ):
        torch.testing.assert_close(weight, rounded, rtol=0, atol=0)


def test_float32_weights_that_are_not_those_of_the_version_are_passed_by(
    halves: tuple[Store, Any], caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = halves
    older, newest = store.versions.list("default")[-2:]
    path, other = store.versions.master(newest), store.versions.master(older)
    assert path and other
    path.write_bytes(other.read_bytes())
    loaded = load_trainable(store, newest, LearnSettings(), CPU)
    assert "not those that it serves" in caplog.text
    for weight, served in zip(loaded.parameters(), load_current(store, newest, CPU).parameters(), strict=True):
        assert torch.equal(weight, served)


def test_models_of_the_drafts_trained_longest_ago_leave() -> None:
    model = torch.nn.Linear(512, 512, bias=False)  # a megabyte
    resident = ResidentModels(5)
    for draft in ("a", "b", "c"):
        resident.keep(draft, (f"{draft}-0", model), (f"{draft}-1", model))
    assert list(resident._kept) == ["b", "c"]
    none = ResidentModels(0)
    none.keep("a", ("a-0", model), ("a-1", model))
    assert not none._kept


def test_what_is_judged_is_what_is_stored_though_number_0_is_of_another_type(
    settings: Settings, said: list[RequestSamples], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that somebody brought halves the numbers; all that come after it are stored as it is."""
    model = tiny_llama(2)
    model.save_pretrained(tmp_path / "draft")
    settings = settings.changed(storage={"directory": tmp_path / "data"}, gate={"confidence": 0.6})
    judged: list[dict[str, torch.Tensor]] = []
    monkeypatch.setattr(
        draft_learner, "require_servable", lambda _, __, module: judged.append(dict(module.state_dict()))
    )
    with open_store(settings) as store:
        root = store.versions.register_root("default", tmp_path / "draft")
        brought = store.versions.stage("default", root.id, "full", model.to(torch.bfloat16).save_pretrained)
        store.versions.promote(brought.id)
        store.samples.add(said[:16])
        run = run_once(store, settings, "default", "me")
        assert run is not None and run.version is not None and run.state is RunState.PUBLISHED
        stored = load_file(store.versions.folder(store.versions.get(run.version)) / "model.safetensors")
    for name, weight in stored.items():
        assert weight.dtype is torch.bfloat16 and torch.equal(weight.float(), judged[0][name].float())
