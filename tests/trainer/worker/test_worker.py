"""The worker as a process: Celery on real brokers, killed, stopped, held off, and out of disk."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from storage.access.processes import TrainerState
from storage.records import RequestSamples, RunState, VersionState, new_id, now
from storage.settings import Settings
from storage.sql.holders import NAME, holder_name
from storage.store import Store
from tests.trainer.conftest import Traffic
from tests.trainer.models import tiny_llama
from tests.trainer.processes import QUICK, alive_in_group, configured, run_trainer, wait_for, worker, write_config
from trainer.distil.loop import run_once

FOREVER = {"epochs": 20_000, "learning_rate": 5e-3, "batch_tokens": 256}


def published(store: Store) -> list[str]:
    return [run.id for run in store.runs.list() if run.state is RunState.PUBLISHED and run.finished_at]


def test_a_worker_trains_what_falls_due_and_leaves_when_it_is_told(
    drafted: Store, settings: Settings, traffic: Traffic, tmp_path: Path
) -> None:
    with worker(configured(tmp_path, settings, QUICK)) as process:
        for n in (1, 2):
            traffic(12)
            wait_for(lambda n=n: len(published(drafted)) == n, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert alive_in_group(process.pid) == []
    assert drafted.versions.current("default").number >= 1
    assert {path.suffix for path in (drafted.directory / "broker").rglob("*.*")} <= {".msg", ".exchange"}


def test_a_worker_killed_in_mid_training_leaves_its_claim_to_the_next(
    drafted: Store, settings: Settings, traffic: Traffic, tmp_path: Path
) -> None:
    sent = traffic(12, held_out=False)
    with worker(configured(tmp_path, settings, FOREVER)) as process:
        lost = wait_for(lambda: [r for r in drafted.runs.list() if r.heartbeat_at > r.started_at], process)[0]
        os.killpg(process.pid, signal.SIGKILL)
    assert drafted.runs.get(lost.id).state is RunState.CLAIMED  # nobody has noticed yet
    with worker(configured(tmp_path, settings, QUICK)) as process:
        (run_id,) = wait_for(lambda: published(drafted), process)
        traffic(1, held_out=False)  # too few for another run
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert drafted.runs.get(lost.id).state is RunState.LOST
    assert set(drafted.runs.get(run_id).request_ids) == set(lost.request_ids) == {s.request_id for s in sent}
    assert [v.state for v in drafted.versions.list("default")] == [VersionState.READY, VersionState.READY]


@pytest.mark.skipif(not NAME.fullmatch(holder_name()), reason="the system does not tell who lives")
def test_a_worker_that_is_started_again_does_not_wait_for_the_lease_of_the_killed_one(
    drafted: Store, settings: Settings, traffic: Traffic, tmp_path: Path
) -> None:
    traffic(12, held_out=False)
    with worker(configured(tmp_path, settings, FOREVER, lease_seconds=3600, nice=3)) as process:
        lost = wait_for(
            lambda: [r for r in drafted.runs.list() if drafted.trainers.list()[0].doing.get("step")], process
        )
        assert os.getpriority(os.PRIO_PROCESS, drafted.trainers.list()[0].pid) == 3
        os.killpg(process.pid, signal.SIGKILL)
    with worker(configured(tmp_path, settings, QUICK, lease_seconds=3600)) as process:
        wait_for(lambda: published(drafted), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert drafted.runs.get(lost[0].id).state is RunState.LOST


def test_a_worker_whose_group_is_stopped_in_mid_training_gives_its_requests_back_at_once(
    drafted: Store, settings: Settings, traffic: Traffic, tmp_path: Path
) -> None:
    traffic(12, held_out=False)
    with worker(configured(tmp_path, settings, FOREVER, lease_seconds=3600)) as process:
        wait_for(lambda: drafted.runs.list() and not drafted.samples.waiting("default").requests, process)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
    assert [run.state for run in drafted.runs.list()] == [RunState.FAILED]
    assert drafted.samples.waiting("default").requests == 12 and drafted.runs.list()[0].result["stopped"]


def test_a_disk_that_is_full_publishes_nothing_and_what_serves_goes_on(
    store: Store, settings: Settings, tmp_path: Path, all_answers: list[RequestSamples]
) -> None:
    """The weights are larger than a file may be, the database is not."""
    tiny_llama(2, vocab=8192).save_pretrained(tmp_path / "draft")
    root = store.versions.register_root("default", tmp_path / "draft")
    store.samples.add([replace(s, request_id=new_id(), created_at=now()) for s in all_answers[:12]])
    waiting = store.samples.waiting("default").requests
    config = configured(tmp_path, settings, QUICK)
    full = run_trainer("once", "--config", config, "--draft", "default", file_limit=1 << 20)
    assert full.returncode == 5 and "could not be written" in full.stderr and "Traceback" not in full.stderr
    assert store.versions.current("default") == root and len(store.versions.list("default")) == 1
    assert [path.name for path in (store.versions.weights_folder / "default").iterdir()] == [root.id]
    assert store.samples.waiting("default").requests == waiting
    run = run_once(store, settings, "default", "me")
    assert run is not None and run.state is RunState.PUBLISHED and store.versions.current("default").number == 1


def test_a_store_that_cannot_be_opened_is_said_before_anything_starts(tmp_path: Path) -> None:
    url = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    config = write_config(tmp_path / "osd.toml", {"storage": {"url": url, "directory": str(tmp_path / "d")}})
    done = run_trainer("worker", "--config", config)
    assert done.returncode == 5 and "does not answer" in done.stderr and "Traceback" not in done.stderr


def test_a_trainer_says_what_it_does_pauses_gives_its_run_up_and_the_next_one_when_it_is_stopped(
    drafted: Store, settings: Settings, traffic: Traffic, tmp_path: Path
) -> None:
    sent = traffic(12, held_out=False)
    config = configured(tmp_path, settings, FOREVER, lease_seconds=3600)
    config.write_text(config.read_text() + "\n[fleet]\nheartbeat_seconds = 0.2\ngone_seconds = 60\n")
    with worker(config) as process:
        (one,) = wait_for(lambda: [t for t in drafted.trainers.list() if t.doing.get("step")], process)
        assert (one.state, one.doing["draft"], one.pid) == (TrainerState.TRAINING, "default", one.pid)
        drafted.trainers.pause(one.id)
        paused = wait_for(lambda: still(drafted), process)
        assert drafted.trainers.list()[0].state is TrainerState.PAUSED and paused > 0
        drafted.trainers.pause(one.id, undo=True)
        wait_for(lambda: drafted.trainers.list()[0].doing.get("step", 0) > paused, process)
        drafted.trainers.cancel(one.id)
        (run,) = wait_for(lambda: [r for r in drafted.runs.list() if r.finished_at], process)
        assert drafted.samples.waiting("default").requests == 0
        traffic(12, held_out=False)
        wait_for(lambda: not drafted.samples.waiting("default").requests, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert alive_in_group(process.pid) == []
    assert (run.state, run.result) == (RunState.REJECTED, {"reason": "it was cancelled by hand"})
    assert len(run.request_ids) == len(sent) and drafted.runs.list()[0].result["stopped"]
    assert drafted.samples.waiting("default").requests == 12
    assert drafted.trainers.list() == [], "one that ends in order is not listed"


def still(store: Store) -> int:
    """The step at which a trainer waits: the same over a second; 0 while it goes on."""
    before = store.trainers.list()[0].doing.get("step", 0)
    time.sleep(1)
    return int(before) if store.trainers.list()[0].doing.get("step") == before else 0
