"""What trackers are told of training runs, read by their own readers where they are installed."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import BadSetting
from storage.records import RunState, TrainingRun
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.trainer.conftest import Traffic
from trainer.worker import trackers
from trainer.worker.schedule import TrainingSchedule

TOLD = {"acceptance_before", "acceptance_after", "gain", "published", "duration_seconds", "loss_first", "loss_last"}


@pytest.fixture
def trained(
    request: pytest.FixtureRequest, drafted: Store, settings: Settings, traffic: Traffic, never: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[TrainingRun, Path]:  # fmt: skip
    """A run that a tracker was told of, and the folder of its files."""
    pytest.importorskip(request.param)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # so that what the run sets is gone after it
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    told = settings.model_copy(update={"trainer": settings.trainer.model_copy(update={"trackers": (request.param,)})})
    traffic(12)
    schedule = TrainingSchedule(drafted, told, never)
    (run,) = schedule.take_turn()
    schedule.trackers.close()
    assert run.state is RunState.PUBLISHED
    return run, drafted.directory / "trackers"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("trained", ["tensorboard"], indirect=True)
def test_tensorboard(trained: tuple[TrainingRun, Path]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, folder = trained
    (one,) = folder.iterdir()
    read = EventAccumulator(str(one))
    read.Reload()
    assert TOLD | {"loss"} <= set(read.Tags()["scalars"])
    assert [event.step for event in read.Scalars("loss")] == list(range(1, run.result["steps"] + 1))
    assert read.Scalars("gain")[0].value == pytest.approx(run.result["evidence"]["difference"])
    assert f"verdict: {run.state.value}" in "".join(path.read_text() for path in one.rglob("hparams.yml"))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("trained", ["mlflow"], indirect=True)
def test_mlflow(trained: tuple[TrainingRun, Path]) -> None:
    from mlflow.tracking import MlflowClient

    run, folder = trained
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("osd")
    assert experiment is not None
    (one,) = client.search_runs([experiment.experiment_id])
    assert one.info.status == "FINISHED" and TOLD | {"loss"} <= set(one.data.metrics)
    assert one.data.params["run"] == run.id and one.data.params["verdict"] == run.state.value
    assert len(client.get_metric_history(one.info.run_id, "loss")) == run.result["steps"]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("trained", ["wandb"], indirect=True)
def test_wandb(trained: tuple[TrainingRun, Path]) -> None:
    run, folder = trained
    (file,) = folder.rglob("*.wandb")
    history: dict[str, list[float]] = {}
    configured: dict[str, Any] = {}
    for record in wandb_records(file):
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            history.setdefault(name, []).append(json.loads(item.value_json))
        configured |= {item.key: json.loads(item.value_json) for item in record.config.update}
    assert TOLD | {"loss"} <= history.keys() and len(history["loss"]) == run.result["steps"]
    assert history["gain"] == [pytest.approx(run.result["evidence"]["difference"])]
    assert (configured["run"], configured["verdict"]) == (run.id, run.state.value)


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: protocol buffers in LevelDB's log format, behind a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := BLOCK - place % BLOCK) < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        whole = (whole if kind in (3, 4) else b"") + data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield Record.FromString(whole)


BLOCK = 32768


class BrokenTracker:
    """A tracker whose service is away from some moment on."""

    def __init__(self, **options: Any) -> None:
        self.told: list[str] = []
        ALL.append(self)

    def start(self) -> None:
        self.told.append("start")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.told.append("configuration")

    def log(self, values: dict[str, float], step: int) -> None:
        raise ConnectionError("nobody there")

    def finish(self) -> None:
        self.told.append("finish")


ALL: list[BrokenTracker] = []


def test_a_tracker_that_fails_costs_no_run(
    drafted: Store, settings: Settings, traffic: Traffic, never: threading.Event, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    ALL.clear()
    monkeypatch.setattr(trackers, "find_spec", lambda name: True)
    monkeypatch.setitem(accelerate_trackers(), "tensorboard", BrokenTracker)
    told = settings.model_copy(update={"trainer": settings.trainer.model_copy(update={"trackers": ("tensorboard",)})})
    schedule = TrainingSchedule(drafted, told, never)
    assert schedule.take_turn() == [] and ALL == [], "nothing waits: no run, and none of theirs"
    traffic(12)
    (run,) = schedule.take_turn()
    schedule.trackers.close()
    assert run.state is RunState.PUBLISHED and "nobody there" in caplog.text
    assert [one.told for one in ALL] == [["start", "configuration", "finish"]]


def accelerate_trackers() -> dict[str, Any]:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    found: dict[str, Any] = LOGGER_TYPE_TO_CLASS
    return found


def test_one_that_is_not_installed_is_named(
    drafted: Store, tmp_path: Path, never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    told = load_settings(storage={"directory": tmp_path / "data"}, trainer={"trackers": ["wandb"]})
    with pytest.raises(BadSetting, match="wandb is not installed"):
        TrainingSchedule(drafted, told, never)
    with pytest.raises(BadSetting, match="trackers"):
        load_settings(trainer={"trackers": ["elsewhere"]})
