"""Trainers that are killed at every step, hang, meet clocks that jump, and a schema that is newer than they."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from storage import records
from storage.errors import LeaseHeld, TrainingFailed
from storage.records import RunState, VersionState, new_id
from storage.runs import ClaimTerms
from storage.settings import Settings
from storage.store import Store
from tests.integration.mother import STEPS
from tests.support.launch import Process
from tests.trainer.conftest import Traffic
from tests.trainer.processes import QUICK, ROOT, configured, environment, wait_for, worker
from trainer.distil import draft_learner
from trainer.distil.loop import run_once
from trainer.worker.schedule import TrainingSchedule

JUDGED = (RunState.PUBLISHED, RunState.REJECTED)


@pytest.fixture(scope="module")
def mother() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.integration.mother"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with Process(command, cwd=ROOT, env=environment(), **pipes) as process:
        yield process
        process.kill()


def next_run(store: Store, settings: Settings) -> Any:
    """Another trainer's, once the dead one's lease has run out; None when nothing is due."""
    while True:
        try:
            return run_once(store, settings, "default", "next")
        except LeaseHeld:
            wait_for(lambda: store.runs.list()[0].lease_until <= records.now())


@pytest.mark.parametrize("step", STEPS)
def test_a_trainer_killed_at_any_step_loses_nothing_and_trains_nothing_twice(
    drafted: Store,
    settings: Settings,
    traffic: Traffic,
    tmp_path: Path,
    mother: subprocess.Popen[str],
    step: str,
) -> None:
    sent = {each.request_id for each in traffic(12, held_out=False)}
    config = configured(tmp_path, settings, QUICK, lease_seconds=0.5)
    assert mother.stdin and mother.stdout
    mother.stdin.write(f"{config}\t{step}\n")
    mother.stdin.flush()
    assert mother.stdout.readline() == "-9\n"
    (dead,) = drafted.runs.list()
    published = drafted.versions.current("default").number == 1
    assert published == (step == "published")

    drafted.sweep()
    run = next_run(drafted, settings)
    assert (run is None) == published
    states = {run.id: run.state for run in drafted.runs.list()}
    assert states[dead.id] is (RunState.PUBLISHED if published else RunState.LOST)
    judged = [run for run in drafted.runs.list() if run.state in JUDGED]
    assert Counter(each for run in judged for each in run.request_ids) == Counter(sent)
    assert VersionState.CANDIDATE not in {version.state for version in drafted.versions.list()}
    for version in drafted.versions.list():
        drafted.versions.verify(version)
    assert drafted.versions.current("default").number >= 1
    assert drafted.sweep() == []


def test_a_trainer_that_hangs_loses_its_lease_and_its_result(
    drafted: Store, settings: Settings, traffic: Traffic, tmp_path: Path
) -> None:
    sent = {each.request_id for each in traffic(12, held_out=False)}
    forever = {"epochs": 20_000, "learning_rate": 5e-3, "batch_tokens": 256}
    with worker(configured(tmp_path, settings, forever, lease_seconds=1.0)) as process:
        hung = wait_for(lambda: [r for r in drafted.runs.list() if r.heartbeat_at > r.started_at], process)[0]
        os.killpg(process.pid, signal.SIGSTOP)
        run = next_run(drafted, settings)
        assert run.state is RunState.PUBLISHED and set(run.request_ids) == sent
        os.killpg(process.pid, signal.SIGCONT)
        log = tmp_path / "worker.log"
        wait_for(lambda: "is no longer held" in log.read_text(), process)
    assert drafted.runs.get(hung.id).state is RunState.LOST
    assert [version.number for version in drafted.versions.list("default")] == [0, 1]
    assert drafted.versions.current("default").id == run.version


def test_a_worker_that_is_older_than_the_schema_says_so_and_ends(
    drafted: Store, settings: Settings, tmp_path: Path
) -> None:
    with worker(configured(tmp_path, settings, QUICK)) as process:
        log = tmp_path / "worker.log"
        wait_for(lambda: "waiting for work" in log.read_text(), process)
        with drafted.db.session() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        assert process.wait(60) == 5
        assert "has schema 9999" in log.read_text() and "Traceback" not in log.read_text()


class Jumping:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.ahead, self._real = 0.0, records.now

    def __call__(self) -> float:
        return self._real() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Jumping:
    it = Jumping()
    monkeypatch.setattr(records, "now", it)
    return it


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_clock_that_jumps_between_runs_stops_no_training(
    drafted: Store, settings: Settings, traffic: Traffic, never: Any, clock: Jumping, jump: float, monkeypatch: Any
) -> None:
    """A run that failed under the old clock is rested after at most as long as before."""
    taker = TrainingSchedule(drafted, settings, never)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no such device")

    traffic(8, held_out=False)
    with monkeypatch.context() as broken, pytest.raises(TrainingFailed):
        broken.setattr(draft_learner, "distil_on_devices", fails)
        taker.train("default")
    clock.ahead = jump
    new = {each.request_id for each in traffic(8, held_out=False)}
    runs = wait_for(taker.take_turn)
    assert set(runs[0].request_ids) & new and all(run.state in JUDGED for run in runs)


@pytest.mark.parametrize("jump", [61.0, 1e6, -1e6])
def test_a_clock_that_jumps_in_a_run_ends_the_lease_at_worst(
    drafted: Store, settings: Settings, traffic: Traffic, clock: Jumping, jump: float
) -> None:
    """Forwards, or back by more than the lease's length, another may take the draft, and what the first one made is
    thrown away; a little backwards nothing happens."""
    traffic(12, held_out=False)
    terms = ClaimTerms(1, 0.0, 60.0)
    first = drafted.runs.claim("default", new_id(), terms)
    assert first is not None
    clock.ahead = -30.0
    with pytest.raises(LeaseHeld):
        drafted.runs.claim("default", new_id(), terms)
    drafted.runs.heartbeat(first, 60.0)
    clock.ahead = jump
    second = drafted.runs.claim("default", new_id(), terms)
    assert second is not None and set(second.request_ids) == set(first.request_ids)
    assert drafted.runs.get(first.id).state is RunState.LOST
