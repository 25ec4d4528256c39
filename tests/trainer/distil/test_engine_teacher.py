"""A vLLM that hands over hidden states teaches what the target itself would teach; what is not its own is refused."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi import FastAPI, Request
from safetensors.torch import save_file

from osd.attached.base import EngineUnsuited
from osd.attached.vllm.hidden_states import HiddenStatesVllm, extracted_layers
from osd.hotswap.new_draft import new_feature_version
from osd.models.features.target import FeatureTarget
from osd.models.features.without_layers import load_without_layers
from osd.models.model_digest import model_digest
from osd.models.pair import load_reader
from storage.errors import BadSetting, ModelNotLoaded
from storage.records import RunState, new_id, now
from storage.settings import Settings
from storage.store import Store
from tests.osd.attached.conftest import Running
from tests.support.models import CONFIGS, random_module
from tests.support.other_targets import recurrent, vision_language
from tests.support.plain_chains import plain_features
from tests.trainer.feature_drafts import answered
from trainer.distil.collate import collate
from trainer.distil.engine_teacher import EngineTeacher
from trainer.distil.loop import run_once
from trainer.distil.teacher import RecomputeTeacher
from trainer.distil.teachers import Teachers

CPU = torch.device("cpu")
MADE = {kind: lambda kind=kind: random_module(kind) for kind in CONFIGS}
ENDS = {**MADE, "vision_language": vision_language, "recurrent": recurrent}


class FakeStates:
    """A vLLM with osd's connector, as far as its files and its JSON go: a module of transformers computes."""

    def __init__(self, module: Any, folder: Path, layers: list[int]) -> None:
        self.target, self.folder, self.layers = FeatureTarget(module), folder, layers
        self.full = False
        self.asked: list[list[int]] = []

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/v1/completions")
        async def complete(http: Request) -> Any:
            body = await http.json()
            self.asked.append(body["prompt"])
            path = self.folder / f"{len(self.asked)}.safetensors"
            with Path(f"{path}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                token = self._write(body["prompt"], path)
            return {"choices": [{"token_ids": [token]}], "kv_transfer_params": {"hidden_states_path": str(path)}}

        return app

    def _write(self, tokens: list[int], path: Path) -> int:
        count = self.target.layers
        numbers = [count + 1 if number == count else number for number in self.layers]
        states, chances = plain_features(self.target, tokens, numbers)
        if not self.full:
            kept = {
                "hidden_states": states.unflatten(1, (len(numbers), -1)).contiguous(),
                "token_ids": torch.tensor(tokens), "layers": torch.tensor(self.layers),
            }  # fmt: skip
            save_file(kept, path)
        return int(chances[-1].argmax())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "states").mkdir()
    return tmp_path / "states"


@pytest.fixture
def engine(folder: Path) -> Iterator[FakeStates]:
    yield FakeStates(random_module("llama"), folder, [1, 2])


@pytest.fixture
def running(engine: FakeStates) -> Iterator[Running]:
    made = Running(engine.app())
    yield made
    made.stop()


def ends(module: Any, folder: Path) -> FeatureTarget:
    module.save_pretrained(folder / "target")
    return FeatureTarget(load_without_layers(folder / "target", CPU, torch.float32), str(folder / "target"))


@pytest.mark.parametrize("kind", ENDS)
def test_ends_are_the_targets_own(kind: str, tmp_path: Path) -> None:
    module = ENDS[kind]()
    found, whole = ends(module, tmp_path), FeatureTarget(load_reader(_saved(module, tmp_path), CPU))
    tokens = torch.arange(2, 9)
    torch.testing.assert_close(found.embed(tokens), whole.embed(tokens))
    states, chances = plain_features(whole, tokens.tolist(), [whole.layers + 1])
    teacher = EngineTeacher(found, (), 0, HiddenStatesVllm("http://127.0.0.1:1"))
    torch.testing.assert_close(found.head(teacher._norm(states)).softmax(-1), chances, rtol=1e-4, atol=1e-6)
    layers = sum(weight.numel() for name, weight in found.module.named_parameters() if ".layers." in name)
    assert not layers, "no layer was read"


def _saved(module: Any, folder: Path) -> Path:
    module.save_pretrained(folder / "again")
    return folder / "again"


def test_ends_that_are_quantised_are_refused_by_name(tmp_path: Path) -> None:
    module = random_module("llama")
    module.save_pretrained(tmp_path)
    tensors = {name: value.clone() for name, value in module.state_dict().items()}
    tensors["lm_head.qweight"] = tensors.pop("lm_head.weight").to(torch.int8)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelNotLoaded, match=r"lm_head\.weight as plain numbers"):
        load_without_layers(tmp_path, CPU, None)


@pytest.mark.parametrize("layers", [(), (2,), (1,), (1, 3), (2, 3)])
def test_it_teaches_what_the_target_would_teach(
    engine: FakeStates, running: Running, tmp_path: Path, layers: tuple[int, ...]
) -> None:
    module = random_module("llama")
    samples = [answered(module, 3, new)[i] for i, new in enumerate((4, 9, 6))]
    teacher = EngineTeacher(ends(module, tmp_path), layers, 64, HiddenStatesVllm(running.url))
    found, plain = (
        each.complete(collate(samples), samples) for each in (teacher, RecomputeTeacher(FeatureTarget(module), layers))
    )
    torch.testing.assert_close(found.rows_logprobs, plain.rows_logprobs, rtol=1e-4, atol=1e-4)
    if layers:
        mask = plain.attention_mask.bool()
        torch.testing.assert_close(found.features[mask], plain.features[mask], rtol=1e-4, atol=1e-4)
    teacher.complete(collate(samples), samples)
    assert len(engine.asked) == 3, "what was read stays in memory"
    assert not list(engine.folder.iterdir()), "what was read does not stay on disk"


def test_numbers_of_hidden_states_are_vllms() -> None:
    assert extracted_layers((), 30) == [30] and extracted_layers((30,), 30) == [30]
    assert extracted_layers((31, 2, 15), 30) == [2, 15, 30]


def test_another_target_and_lacking_states_are_told(engine: FakeStates, running: Running, tmp_path: Path) -> None:
    module = random_module("llama")
    samples = answered(module, 2)
    for shared, layers, says in (
        (ends(random_module("llama", seed=5), tmp_path / "other"), (2,), "goes on otherwise"),
        (ends(module, tmp_path), (0, 2), r"hands over hidden states \[1, 2\], and \[0\] are learned"),
    ):
        with pytest.raises(BadSetting, match=says):
            EngineTeacher(shared, layers, 64, HiddenStatesVllm(running.url)).complete(collate(samples), samples)


def test_a_folder_that_is_full_is_told(engine: FakeStates, running: Running) -> None:
    engine.full = True
    with pytest.raises(EngineUnsuited, match=r"does not see that folder, or it is full \(bound_mb\)"):
        HiddenStatesVllm(running.url).read([3, 4, 5])
    assert not list(engine.folder.iterdir())


def test_a_file_that_no_connector_wrote_is_refused_and_stays(engine: FakeStates, running: Running) -> None:
    weights = engine.folder / "1.safetensors"
    engine.full = True  # it writes nothing over what is there
    save_file({"lm_head.weight": torch.ones(2)}, weights)
    with pytest.raises(EngineUnsuited, match="is not of osd's connector"):
        HiddenStatesVllm(running.url).read([3, 4, 5])
    assert weights.exists()


def test_a_run_learns_from_it(
    store: Store, settings: Settings, engine: FakeStates, running: Running, tmp_path: Path
) -> None:
    target = _saved(random_module("llama"), tmp_path)
    learn = {"teacher": "engine", "teacher_url": running.url, "epochs": 6}
    settings = settings.changed(serve={"target": str(target)}, learn=learn, gate={"confidence": 0.6})
    root, digest = new_feature_version(store, "default", str(target), "eagle"), model_digest(str(target))
    assert digest is not None
    for s in answered(random_module("llama"), 40):
        text = {"request_id": new_id(), "created_at": now(), "target": digest, "draft_version": root.id}
        store.samples.add([replace(s, **text)])
    run = run_once(store, settings, "default", "me")
    assert run is not None and run.state is RunState.PUBLISHED, run and run.result
    assert len(engine.asked) == 40


def test_without_a_url_it_is_refused(store: Store, settings: Settings, tmp_path: Path) -> None:
    target = _saved(random_module("llama"), tmp_path)
    new_feature_version(store, "default", str(target), "eagle")
    settings = settings.changed(serve={"target": str(target)}, learn={"teacher": "engine"})
    with pytest.raises(BadSetting, match=r"learn\.teacher_url"):
        Teachers().lessons(store, settings, store.versions.current("default"), CPU)
