"""Running the command, and a store for it to look at."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

from osd.cli import checks, doctor
from osd.cli.main import app
from osd.server.start import SHIPPED, PairNames
from storage.records import Outcome, RequestSamples, RunState
from storage.runs import ClaimTerms
from storage.settings import ServeSettings, load_settings
from storage.store import Store, open_store
from tests.support import launch

Done = Result | subprocess.CompletedProcess[str]
Osd = Callable[..., Done]
LOADED: dict[Any, Any] = {}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of this test's osd."""
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair that ships with osd is loaded once for all commands that run in this process."""
    load = PairNames.load

    def loaded(names: PairNames, serve: ServeSettings, once: bool = False) -> Any:
        if not names.target.startswith(str(SHIPPED)) or not names.draft.startswith(str(SHIPPED)):
            return load(names, serve, once=once)
        key = names, serve.device, serve.dtype, serve.device_map, serve.draft_device, once
        return LOADED.setdefault(key, LOADED.get(key) or load(names, serve, once=once))

    monkeypatch.setattr(PairNames, "load", loaded)


@pytest.fixture
def osd(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Osd:
    """``osd(*arguments, stdin="", **variables)`` in this process, in an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, stdin: str = "", **variables: str) -> Result:
        surroundings = {"OSD_STORAGE__DIRECTORY": str(data), "COLUMNS": "200", **variables}
        done = CliRunner().invoke(app, list(map(str, arguments)), input=stdin, env=surroundings)
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    return run


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``only(*checks)``: of the checks of `osd doctor` that need settings these alone, and nobody asks the broker."""

    def choose(*chosen: Any) -> None:
        monkeypatch.setattr(checks, "ping", lambda here: None)
        monkeypatch.setattr(checks, "broker", lambda here, asked: checks.ok("broker", "not asked"))
        monkeypatch.setattr(doctor, "BEFORE_BROKER", chosen)
        monkeypatch.setattr(doctor, "AFTER_BROKER", ())
        monkeypatch.setattr(doctor, "WITH_TORCH", ())

    return choose


@pytest.fixture
def osd_process(data: Path, tmp_path: Path) -> Osd:
    """The same in a process of its own, for what only a process shows. The status is ``returncode`` there."""

    def run(*arguments: object, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        surroundings = {**os.environ, "OSD_STORAGE__DIRECTORY": str(data), "OMP_NUM_THREADS": "1", **variables}
        command = [sys.executable, "-m", "osd.cli.main", *map(str, arguments)]
        return launch.run(command, stdin=stdin, env=surroundings, cwd=tmp_path)

    return run


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The data directory that every test's :func:`filled` is a copy of, and its versions."""
    folder = tmp_path_factory.mktemp("kept")
    with open_store(load_settings(storage={"directory": folder / "data", "holdout": 0.0})) as store:
        root = store.versions.register_root("default", model_folder(folder / "draft", 0.0))
        store.samples.add([samples(i, root.id) for i in range(6)])
        store.outcomes.add([outcome(i, root.id) for i in range(6)], "test")
        run = store.runs.claim("default", "test", ClaimTerms(1, 60, 60))
        assert run is not None
        child = store.versions.stage(
            "default", root.id, "full", lambda folder: write_model(folder, 1.0), run_id=run.id,
            provenance={"osd": "test"},
        )  # fmt: skip
        store.versions.publish(child.id, {"gain": 0.25}, run=run)
        store.runs.finish(run, RunState.PUBLISHED, child.id)
    return folder / "data", root.id, child.id


@pytest.fixture
def filled(kept: tuple[Path, str, str], data: Path) -> Iterator[Filled]:
    """A store with one draft, a version that was published, and a few requests."""
    folder, root, child = kept
    shutil.copytree(folder, data)
    with open_store(load_settings(storage={"directory": data, "holdout": 0.0})) as store:
        yield Filled(store, root, child)


@dataclass
class Filled:
    """The store, its draft's number 0, and number 1, which is current."""

    store: Store
    root: str
    child: str


def model_folder(folder: Path, value: float) -> Path:
    """A folder that looks like a model: the store does not load it."""
    folder.mkdir()
    write_model(folder, value)
    return folder


def write_model(folder: Path, value: float) -> None:
    """One tensor and a configuration."""
    (folder / "config.json").write_text("{}")
    save_file({"weight": np.full(4, value, dtype=np.float32)}, folder / "model.safetensors")


def samples(number: int, version: str) -> RequestSamples:
    """Three verified positions of a request of eight tokens, with two kept log-probabilities each."""
    return RequestSamples(
        request_id=f"request-{number}",
        route="default",
        tenant="odd" if number % 2 else "even",
        draft_version=version,
        created_at=time.time(),
        prompt_len=5,
        tokens=np.arange(number, number + 8, dtype=np.int32),
        positions=np.array([5, 6, 7], dtype=np.int32),
        kinds=np.array([0, 1, 2], dtype=np.uint8),
        drafted=np.array([1, 2, 3], dtype=np.int32),
        topk_ids=np.array([[1, 2]] * 3, dtype=np.int32),
        topk_logprobs=np.full((3, 2), -1.0, dtype=np.float16),
        outside=np.full(3, 0.26, dtype=np.float32),
    )


def outcome(number: int, version: str) -> Outcome:
    """Four tokens drafted, three accepted, one rejection, five emitted."""
    tenant = "odd" if number % 2 else "even"
    totals = dict(requests=1, rounds=2, drafted=4, accepted=3, rejections=1, emitted=5, prompt_tokens=5)
    return Outcome(
        f"request-{number}", "default", tenant, version, "fixed", time.time(), **totals, draft_ms=1, verify_ms=2
    )
