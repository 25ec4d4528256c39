"""Settings for the processes that a run starts, and what they do not inherit."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from osd.demo.runner.circle import own_settings
from osd.demo.runner.process import WorkerProcess, environment, save_settings, worker_beside
from storage.errors import TrainingFailed
from storage.settings import load_settings
from tests.support.launch import start_quickly


def test_a_saved_file_reads_back_as_the_same_settings(tmp_path: Path) -> None:
    learn = {"learning_rate": 3e-5, "interval_requests": 3, "method": "lora"}
    settings = own_settings(load_settings(), tmp_path / 'da"ta', learn=learn, serve={"max_batch": 3})
    assert load_settings(save_settings(settings, tmp_path / "osd.toml")) == settings
    assert settings.storage.flush_requests == 3


def test_a_run_has_a_store_of_its_own_whatever_the_user_has_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSD_STORAGE__URL", "postgresql+psycopg://somebody@else/db")
    monkeypatch.setenv("OSD_TRAINER__BROKER", "redis://elsewhere")
    monkeypatch.setenv("OSD_SERVE__RECORD", "off")
    monkeypatch.setenv("OSD_LEARN__LEARNING_RATE", "0.5")
    settings = own_settings(load_settings(), tmp_path)
    assert settings.storage.database_url().startswith("sqlite:///") and settings.trainer.broker is None
    assert settings.serve.record == "verified" and settings.learn.learning_rate == 0.5
    assert not [name for name in environment() if name.startswith("OSD_")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    start_quickly("osd.demo.runner.process", monkeypatch)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return save_settings(own_settings(load_settings(), tmp_path / "data"), tmp_path / "osd.toml")


def family(worker: WorkerProcess) -> list[psutil.Process]:
    process = psutil.Process(worker.pid)
    return [process, *process.children(recursive=True)]


def test_the_worker_and_its_children_are_gone_after_the_block(config: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), worker_beside(config, tmp_path / "log") as worker:
        processes = family(worker)
        raise KeyboardInterrupt
    assert not [process for process in processes if process.is_running()]


def test_a_worker_that_does_not_listen_is_killed(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osd.demo.runner.process.PATIENCE", 0.1)
    worker = WorkerProcess(config, tmp_path / "log")
    psutil.Process(worker.pid).suspend()
    worker.stop()
    assert not psutil.pid_exists(worker.pid)


def test_a_dead_worker_is_noticed_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "osd.toml").write_text("[learn]\nintervall = 8\n")
    with worker_beside(tmp_path / "osd.toml", tmp_path / "log") as worker:
        psutil.Process(worker.pid).wait(60)
        with pytest.raises(TrainingFailed, match="intervall"):
            worker.require_alive()
