"""Celery as people know it: ``celery -A trainer``, queues by device class, and a turn's time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from storage.access.processes import TrainerState
from storage.records import RunState
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.support import launch
from tests.trainer.conftest import Traffic
from tests.trainer.processes import PATIENCE, QUICK, configured, environment, wait_for, worker
from trainer.gpus import device_class
from trainer.worker.broker import class_queue, has_ended, make_app, node_name, nudge, queue_name
from trainer.worker.tasks import TrainingProcess

HOUR = 3600.0


def celery(config: Path, *arguments: str) -> Any:
    """`celery -A trainer …` to its end."""
    command = [sys.executable, "-m", "celery", "-A", "trainer", *arguments]
    surroundings = {**environment(), "OSD_CONFIG": str(config)}
    return launch.run(command, cwd=config.parent, env=surroundings, timeout=PATIENCE)


def ended(store: Store) -> int:
    return sum(run.finished_at is not None for run in store.runs.list())


def test_celery_status_names_the_trainers_that_live(drafted: Store, settings: Settings, tmp_path: Path) -> None:
    config = configured(tmp_path, settings, QUICK)
    with worker(config) as process:
        said = wait_for(lambda: (answer := celery(config, "status")).returncode == 0 and answer.stdout, process)
        assert f"osd-{process.pid}@" in said and "1 node online" in said
        wait_for(lambda: [t for t in drafted.trainers.list() if t.state is TrainerState.IDLE], process)
        os.killpg(process.pid, signal.SIGTERM)  # as a service manager does it: the training process ends too
        assert process.wait(60) == 0
    assert "No nodes replied" in celery(config, "status").stderr
    assert not [path for path in (drafted.directory / "broker" / "messages").iterdir() if "pidbox" in path.name]
    assert not has_ended(node_name() + ".celery.pidbox") and not has_ended("osd-1@elsewhere.celery.pidbox")


def test_celery_starts_a_worker_that_trains(
    drafted: Store, settings: Settings, traffic: Traffic, tmp_path: Path
) -> None:
    config = configured(tmp_path, settings, QUICK)
    traffic(12)
    command = [sys.executable, "-m", "celery", "-A", "trainer", "worker", "--loglevel", "WARNING"]
    surroundings = {**environment(), "OSD_CONFIG": str(config), "C_FORCE_ROOT": "1"}
    with (tmp_path / "log").open("wb") as log:
        process = launch.Process(
            command, cwd=tmp_path, env=surroundings, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_for(lambda: ended(drafted) == 1, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert drafted.runs.list()[0].state is RunState.PUBLISHED


def test_a_message_to_a_device_class_wakes_its_workers_alone(
    drafted: Store, settings: Settings, traffic: Traffic, tmp_path: Path
) -> None:
    config = configured(tmp_path, settings, QUICK, poll_seconds=HOUR)
    told = load_settings(config)
    app = make_app(told)
    assert class_queue(told) == f"{queue_name(told)}.cpu"
    traffic(12)
    with worker(config) as process:
        wait_for(lambda: ended(drafted) == 1, process)  # its own look when it starts
        traffic(12)
        nudge(app, told, f"{queue_name(told)}.gpu")
        nudge(app, told, class_queue(told))
        wait_for(lambda: ended(drafted) == 2, process)
        left = [path.name for path in (drafted.directory / "broker" / "messages").iterdir()]
        assert len(left) == 1 and left[0].endswith(".gpu.msg")
        traffic(12)
        nudge(app, told)
        wait_for(lambda: ended(drafted) == 3, process)


def test_the_class_is_told_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [device_class(device) for device in ("cpu", "cuda", "cuda:1")] == ["cpu", "gpu", "gpu"]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([self / "nvidia0"]))
    assert device_class("auto") == device_class("spare") == "gpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert device_class("auto") == "cpu"


def test_a_turn_that_takes_too_long_gives_its_requests_back(
    drafted: Store, settings: Settings, traffic: Traffic, never: threading.Event
) -> None:
    limited = settings.changed(trainer={"turn_seconds": 0.5}, learn={"epochs": 5_000})
    assert make_app(limited).conf.task_time_limit == 30.5 and make_app(settings).conf.task_time_limit is None
    sent = traffic(12, held_out=False)
    assert TrainingProcess(limited, never, None).turn() == 1
    (run,) = drafted.runs.list()
    assert run.state is RunState.FAILED and run.result["stopped"]
    assert drafted.samples.waiting("default").requests == len(sent)


def test_a_training_process_that_says_goodbye_is_not_killed_while_it_does(settings: Settings) -> None:
    """The pool answers a goodbye with a SIGTERM, which any thread of the process may take."""
    process, before = TrainingProcess(settings, threading.Event(), None), signal.getsignal(signal.SIGTERM)
    process.close()
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_IGN
