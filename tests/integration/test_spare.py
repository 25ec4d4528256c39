"""Capacity to spare: told by engines, measured on the machine, waited for between slices of a step; and budgets."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from osd.demo import DRAFT, TARGET
from osd.engine.session import serving
from osd.engine.stats import Beacon, EngineLoad, load_folder, loads
from osd.models.pair import load_pair
from osd.prompts import encode
from storage import records
from storage.records import Request, RequestSamples, RunState
from storage.runs import ClaimTerms
from storage.settings import Settings, TrainerSettings, load_settings
from storage.sql.tables import RunRow
from storage.store import Store, open_store
from tests.storage.make import outcome
from tests.trainer.conftest import Traffic
from tests.trainer.models import tiny_llama
from tests.trainer.processes import wait_for
from trainer.distil.distil import distil
from trainer.distil.epoch import MicroBatches
from trainer.worker.idle_capacity import IdleCapacity, OthersShare, spent_in_the_last_hour, why_over_budget
from trainer.worker.schedule import TrainingSchedule

SPARE = TrainerSettings(spare=True, spare_cpu=1.0)


class Engine:
    """What a beacon looks at."""

    def __init__(self) -> None:
        self.load = (False, 0, 0)

    def __call__(self) -> tuple[bool, int, int]:
        return self.load


def test_an_engine_that_is_busy_leaves_nothing_to_spare(tmp_path: Path) -> None:
    engine, spare = Engine(), IdleCapacity(SPARE, tmp_path)
    assert spare.why_not() is None, "no engine, no contest"
    load_report = Beacon(tmp_path, engine)
    wait_for(lambda: loads(tmp_path) == [EngineLoad(0.0, 0, 0)])
    assert spare.why_not_begin() is None
    engine.load = True, 3, 0
    assert "busy" in wait_for(spare.why_not)
    engine.load = True, 3, 2
    wait_for(lambda: spare.why_not() == "2 requests wait for a row")
    engine.load = False, 0, 0
    wait_for(lambda: spare.why_not() is None)
    assert IdleCapacity(TrainerSettings(), tmp_path).why_not() is None
    engine.load = True, 3, 2
    wait_for(spare.why_not)
    load_report.close()
    wait_for(lambda: spare.why_not() is None)
    assert loads(tmp_path) == []


def test_a_killed_engine_is_not_taken_for_a_busy_one(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text('{"at": 1.0, "busy": 1.0, "rows": 8, "waiting": 9}')
    (tmp_path / "2.json").write_text('{"at"')
    assert loads(tmp_path) == []


def test_a_real_engine_tells_of_its_load(tmp_path: Path) -> None:
    settings = load_settings(storage={"directory": tmp_path}, serve={"max_batch": 2})
    pair = load_pair(TARGET, DRAFT)
    with open_store(settings) as store:
        with serving(pair, settings, store) as engine:
            wait_for(lambda: loads(load_folder(tmp_path)))
            asked = encode(pair.tokenizer, "How many days has a leap year?")
            engine.submit(Request(asked, max_new_tokens=1500, ignore_eos=True))
            assert loads(load_folder(tmp_path))[0].devices == ("cpu",)
            while engine.busy and not any(load.busy > 0.3 and load.rows == 1 for load in loads(load_folder(tmp_path))):
                engine.step()
            assert engine.busy, "it was told before the request ended"
        assert loads(load_folder(tmp_path)) == []


def test_others_share_is_all_but_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    share = OthersShare()
    readings = iter([(10.0, 100.0, 50.0), (11.0, 101.5, 50.5)])
    monkeypatch.setattr(share, "_now", lambda: next(readings))
    monkeypatch.setattr("trainer.worker.idle_capacity.psutil.cpu_count", lambda: 2)
    share._before = next(readings)
    assert share.share() == pytest.approx(0.5)  # of two cores one second was others'


@pytest.mark.parametrize("milliseconds", [1e-3, 5.0, 1e6])
def test_slices_leave_the_gradient_as_it_is(all_answers: list[RequestSamples], milliseconds: float) -> None:
    learn = load_settings(learn={"epochs": 2, "batch_tokens": 512, "learning_rate": 1e-3}).learn
    whole, cut = tiny_llama(2).double(), tiny_llama(2).double()
    calls: list[None] = []
    one = distil(whole, all_answers[:12], learn)
    other = distil(cut, all_answers[:12], learn, slices=MicroBatches(milliseconds / 1000, lambda: calls.append(None)))
    assert (one.steps, one.positions) == (other.steps, other.positions)
    assert other.loss_last == pytest.approx(one.loss_last, rel=1e-5)
    for mine, theirs in zip(whole.parameters(), cut.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)
    assert len(calls) == (24 if milliseconds < 1 else len(calls)) >= other.steps


def test_slices_follow_the_measured_pace(all_answers: list[RequestSamples], monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that takes a millisecond a token gets as many tokens as the milliseconds that a slice may take."""
    clock = [0.0]
    monkeypatch.setattr("trainer.distil.epoch.time.perf_counter", lambda: clock[0])
    slices, sizes = MicroBatches(0.2, lambda: None), []
    same = [all_answers[0]] * 64
    width = len(all_answers[0].tokens) - 1
    for part in slices.cut(same, range(64)):
        clock[0] += 0.001 * width * len(part)
        sizes.append(len(part))
    assert sum(sizes) == 64 and all(size * width <= 200 for size in sizes) and max(sizes) == 200 // width


def test_a_run_pauses_while_serving_needs_the_machine(
    drafted: Store, settings: Settings, traffic: Traffic, never: threading.Event
) -> None:
    worker = settings.trainer.model_copy(update={"spare": True, "spare_cpu": 1.0, "slice_ms": 1.0})
    turns = TrainingSchedule(drafted, settings.model_copy(update={"trainer": worker}), never)
    traffic(12)
    engine, asked = Engine(), threading.Event()
    load_report = Beacon(load_folder(drafted.directory), engine)
    engine.load = True, 1, 1
    wait_for(turns.spare.why_not)
    assert turns.take_turn() == [] and drafted.runs.list() == [], "none begins"
    engine.load = False, 0, 0
    wait_for(lambda: turns.spare.why_not() is None)

    def busy(progress: Any) -> None:
        if not asked.is_set():
            asked.set()
            engine.load = True, 1, 1
            wait_for(turns.spare.why_not)
            threading.Timer(0.2, lambda: setattr(engine, "load", (False, 0, 0))).start()

    (run,) = turns.take_turn(busy)
    load_report.close()
    assert run.state is RunState.PUBLISHED and run.result["paused_seconds"] > 0


def test_an_hour_has_so_many_seconds_of_training(
    drafted: Store, settings: Settings, traffic: Traffic, never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = settings.trainer.model_copy(update={"seconds_per_hour": 0.01})
    turns = TrainingSchedule(drafted, settings.model_copy(update={"trainer": worker}), never)
    traffic(12)
    assert len(turns.take_turn()) == 1
    traffic(12)
    assert turns.take_turn() == [] and "trainer.seconds_per_hour" in (turns._why_not("default") or "")
    assert spent_in_the_last_hour(drafted) > 0.01
    later = records.now() + 3700
    monkeypatch.setattr(records, "now", lambda: later)
    assert len(turns.take_turn()) == 1


def test_training_takes_a_share_of_decoding(drafted: Store, settings: Settings, traffic: Traffic) -> None:
    why_not = partial(why_over_budget, drafted, settings.trainer.model_copy(update={"share": 0.5}), "default")
    assert why_not() is None
    traffic(2, held_out=False)
    run = drafted.runs.claim("default", "me", ClaimTerms(1, 0, 60))
    assert run is not None
    with drafted.db.session() as session:
        session.get_one(RunRow, run.id).started_at -= 5.0
    assert "training took 5 s of an hour that decoded 0 s" in (why_not() or "")
    for decoded, allowed in ((8_000.0, False), (4_000.0, True)):
        drafted.outcomes.add([outcome(finished_at=records.now(), draft_ms=0.0, verify_ms=decoded)], "w")
        assert (why_not() is None) is allowed


def test_training_costs_no_more_than_it_saved(drafted: Store, settings: Settings, traffic: Traffic) -> None:
    why_not = partial(why_over_budget, drafted, settings.trainer.model_copy(update={"never_more_than_saved": True}))
    assert why_not("default") is None, "nothing was served: not known"
    root = drafted.versions.current("default").id

    def served(**counts: Any) -> None:
        drafted.outcomes.add([outcome(draft_version=root, finished_at=records.now(), **counts)], "w")

    plain = {"rounds": 1000, "drafted": 0, "accepted": 0, "rejections": 0, "draft_ms": 0.0}
    served(**plain, emitted=1000, verify_ms=10_000.0)  # 10 ms a token
    assert why_not("default") is None
    traffic(2, held_out=False)
    run = drafted.runs.claim("default", "me", ClaimTerms(1, 0, 60))
    assert run is not None
    with drafted.db.session() as session:
        row = session.get_one(RunRow, run.id)
        row.started_at -= 5.0
    drafted.runs.finish(run, RunState.REJECTED)
    assert "more than it saved" in (why_not("default") or "")
    served(rounds=100, drafted=400, accepted=900, rejections=0, emitted=1000, draft_ms=500.0, verify_ms=1000.0)
    assert why_not("default") is None, "8.5 s were saved, 5 spent"
