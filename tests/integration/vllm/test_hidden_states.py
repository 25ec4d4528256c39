"""A second vLLM hands over its hidden states: they are the target's own, and a draft learns from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.vllm.server import vllm_server
from osd.attached.vllm.hidden_states import HiddenStatesVllm, extracted_layers, start_options
from osd.cli.main import app
from osd.demo import TARGET
from osd.hotswap.new_draft import new_feature_version
from osd.models.features.target import FeatureTarget, read_states
from osd.models.model_digest import model_digest
from osd.models.pair import load_reader
from storage.records import RunState, new_id, now
from storage.settings import Settings
from storage.store import open_store
from tests.integration.vllm.conftest import some_prompts
from tests.trainer.models import answers
from trainer.distil.collate import collate
from trainer.distil.loop import run_once
from trainer.distil.teacher import RecomputeTeacher
from trainer.distil.teachers import Teachers

pytestmark = pytest.mark.vllm
LAYERS = (1, 4, 7)
CLOSE = 1e-4


@pytest.fixture(scope="module")
def handed(folder: Path) -> Path:
    """The folder that it writes to."""
    (folder / "states").mkdir()
    return folder / "states"


@pytest.fixture(scope="module")
def reader(python: Path, folder: Path, plugin: str, handed: Path) -> Iterator[HiddenStatesVllm]:
    """The vLLM, with osd's connector, as `osd engines teacher` says it is started."""
    options = start_options(extracted_layers(LAYERS, 8), str(handed), 64)
    with vllm_server(python, TARGET, folder / "reader.log", options, {"PYTHONPATH": plugin}) as url:
        yield HiddenStatesVllm(url)


@pytest.fixture(scope="module")
def target() -> FeatureTarget:
    return FeatureTarget(load_reader(TARGET, torch.device("cpu"), "float32"), str(TARGET))


def test_hidden_states_are_the_targets_own(reader: HiddenStatesVllm, target: FeatureTarget, handed: Path) -> None:
    worst = 0.0
    for prompt in some_prompts("sql", 8):
        found = reader.read(prompt)
        numbers = [*LAYERS, target.layers + 1]
        ours = read_states(target.module, torch.tensor([prompt]), numbers)
        assert sorted(found.by_layer) == [*LAYERS, target.layers]
        for theirs_, mine in zip(found.by_layer.values(), ours, strict=True):
            worst = max(worst, float((theirs_ - mine[0]).abs().max()))
    print(f"largest difference of a hidden state: {worst:.1e}")
    assert worst < CLOSE
    assert not list(handed.iterdir()), "what was read does not stay on disk"


def test_a_draft_learns_as_it_does_from_the_target_itself(
    reader: HiddenStatesVllm, handed: Path, tmp_path: Path
) -> None:
    learn = {"teacher": "engine", "teacher_url": reader.url, "epochs": 4, "steps": 3}
    settings = Settings().changed(
        storage={"directory": str(tmp_path), "holdout": 0.0}, trainer={"device": "cpu"}, learn=learn,
        serve={"target": str(TARGET), "device": "cpu", "dtype": "float32"},
    )  # fmt: skip
    digest = model_digest(str(TARGET))
    assert digest is not None
    whole = load_reader(TARGET, torch.device("cpu"), "float32")
    texts = answers(whole, some_prompts("sql", 24), 24)
    with open_store(settings) as store:
        root = new_feature_version(store, "default", str(TARGET), "eagle")
        for s in texts:
            kept = replace(s, request_id=new_id(), created_at=now(), target=digest, draft_version=root.id)
            store.samples.add([kept])
        lessons = Teachers().lessons(store, settings, root, torch.device("cpu"))
        assert lessons is not None
        plain = RecomputeTeacher(FeatureTarget(whole), (8,)).complete(collate(texts[:4]), texts[:4])
        found = lessons.teacher.complete(collate(texts[:4]), texts[:4])
        mask = plain.attention_mask.bool()
        assert plain.features is not None and found.features is not None
        torch.testing.assert_close(found.features[mask], plain.features[mask], rtol=CLOSE, atol=CLOSE)
        torch.testing.assert_close(found.rows_logprobs, plain.rows_logprobs, rtol=CLOSE, atol=10 * CLOSE)
        run = run_once(store, settings, "default", "test")
        assert run is not None and run.state is RunState.PUBLISHED, run and run.result
    assert not list(handed.iterdir())


def test_how_it_is_started_and_what_it_takes_is_said_before(tmp_path: Path) -> None:
    surroundings = {"OSD_STORAGE__DIRECTORY": str(tmp_path / "own"), "OSD_SERVE__TARGET": str(TARGET)}
    made = CliRunner().invoke(
        app, ["drafts", "new", "heads", "--kind", "eagle3", "--target", str(TARGET)], env=surroundings
    )
    assert made.exit_code == 0, made.stderr
    done = CliRunner().invoke(app, ["engines", "teacher", str(tmp_path), "--draft", "heads"], env=surroundings)
    assert done.exit_code == 0, done.stderr
    assert "extract_hidden_states" in done.stdout and "osd_vllm.hidden_states" in done.stdout
