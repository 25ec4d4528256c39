"""How far a run is: in the trainer's log, in the list of trainers, on the dashboard."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from osd.cli.trainer import told
from osd.server.admin.dashboard import runs
from storage.settings import Settings
from storage.store import Store
from tests.trainer.conftest import Traffic
from trainer.distil.distil import DistilProgress
from trainer.worker.schedule import TrainingSchedule


@pytest.mark.parametrize("pause", [0.0, 1e9])
def test_a_run_under_way_says_how_far_it_is(
    pause: float, drafted: Store, settings: Settings, traffic: Traffic, never: threading.Event,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr("trainer.worker.report.TELL_SECONDS", pause)
    traffic(12, held_out=False)
    schedule, heard = TrainingSchedule(drafted, settings, never), list[tuple[DistilProgress, Any]]()

    def watch(progress: DistilProgress) -> None:
        schedule.report.beat()
        heard.append((progress, runs(drafted, 1)[0]["doing"]))
        assert told(drafted.trainers.list()[0].doing).startswith(f"default, step {progress.step} of {progress.steps}, ")

    with caplog.at_level("INFO", "osd.trainer"):
        assert schedule.take_turn(watch)
    assert [(doing["step"], doing["loss"]) for _, doing in heard] == [(one.step, one.loss) for one, _ in heard]
    assert runs(drafted, 1)[0]["doing"] is None, "it has ended"
    lines = [line.getMessage() for line in caplog.records if getattr(line, "action", "") == "run_goes_on"]
    said = [f"default: step {one.step} of {one.steps}, loss {one.loss:.3f}" for one, _ in heard]
    assert said and lines == ([] if pause else said)
