"""Requests that make training fail: found by halving, set aside with the reason, while the others are learned from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.errors import OsdError, SegmentDamaged, StoreWriteFailed, TrainingFailed
from storage.records import RequestSamples, RunState, new_id
from storage.runs import ClaimTerms
from storage.settings import Settings
from storage.sql.tables import RunRow
from storage.store import Store
from tests.trainer.conftest import Traffic
from trainer.distil import collate, draft_learner
from trainer.distil.loop import run_once
from trainer.worker.schedule import TrainingSchedule

POISON = {"tenant": "poison"}


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training fails on a tenant's requests, as on numbers that nobody thought of."""
    real = draft_learner.distil_on_devices

    def distil(model: object, samples: list[RequestSamples], *arguments: object, **options: object) -> object:
        if any(each.tenant == "poison" for each in samples):
            raise FloatingPointError("the loss became nan")
        return real(model, samples, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(draft_learner, "distil_on_devices", distil)


def turns(store: Store, settings: Settings, most: int = 30) -> list[RunState]:
    """Runs until nothing is due."""
    states = []
    for _ in range(most):
        try:
            run = run_once(store, settings, "default", "me")
        except TrainingFailed:
            states.append(RunState.FAILED)
            continue
        if run is None:
            return states
        states.append(run.state)
    raise AssertionError("it never ends")


def test_poison_is_found_by_halves_and_the_others_are_learned_from(
    drafted: Store,
    settings: Settings,
    traffic: Traffic,
    poisoned: None,
) -> None:
    bad = traffic(1, held_out=False, **POISON)
    good = traffic(11, held_out=False)
    states = turns(drafted, settings)
    assert states.count(RunState.FAILED) <= 8
    (aside,) = drafted.suspects.list()
    assert (aside.request_id, "the loss became nan" in aside.reason) == (bad[0].request_id, True)
    assert aside.failures >= 3
    judged = [r for r in drafted.runs.list() if r.state in (RunState.PUBLISHED, RunState.REJECTED)]
    assert {each for run in judged for each in run.request_ids} == {each.request_id for each in good}
    assert drafted.samples.waiting("default").requests == 0
    assert [(row.set_aside, row.waiting) for row in drafted.samples.stats()] == [(1, 0)]
    later = traffic(8, held_out=False)
    assert RunState.FAILED not in turns(drafted, settings)
    assert {s.request_id for s in later} <= {each for r in drafted.runs.list() for each in r.request_ids}
    assert drafted.suspects.retry() == 1 and drafted.samples.waiting("default").requests == 1


def test_new_requests_are_not_kept_waiting_by_suspects(
    drafted: Store,
    settings: Settings,
    traffic: Traffic,
    poisoned: None,
    never: object,
) -> None:
    """Retries rest longer and longer; what came after them is trained at once."""
    slow = settings.trainer.model_copy(update={"poll_seconds": 100.0})
    taker = TrainingSchedule(drafted, settings.model_copy(update={"trainer": slow}), never)  # type: ignore[arg-type]
    traffic(8, held_out=False, **POISON)
    with pytest.raises(TrainingFailed):
        run_once(drafted, settings, "default", "me")
    with pytest.raises(TrainingFailed):
        run_once(drafted, settings, "default", "me")  # a retry
    assert [bool(r.settings.get("retry")) for r in drafted.runs.list()] == [True, False]
    assert taker.take_turn() == []  # the first failure was one of new requests: everything rests
    with drafted.db.session() as session:
        for row in session.query(RunRow):
            row.settings = {**row.settings, "retry": True}
    new = traffic(8, held_out=False)
    (run,) = taker.take_turn()
    assert set(run.request_ids) == {s.request_id for s in new}


def test_where_every_run_fails_nothing_is_set_aside(
    drafted: Store,
    settings: Settings,
    traffic: Traffic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault is not the requests' then."""

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no such device")

    traffic(8, held_out=False)
    with monkeypatch.context() as broken:
        broken.setattr(draft_learner, "distil_on_devices", fails)
        for _ in range(12):
            with pytest.raises(TrainingFailed):
                run_once(drafted, settings, "default", "me")
    assert drafted.suspects.list() == [] and drafted.samples.waiting("default").requests == 8
    assert set(turns(drafted, settings)) <= {RunState.PUBLISHED, RunState.REJECTED}
    assert drafted.samples.waiting("default").requests == 0


def test_a_segment_that_cannot_be_read_is_set_aside_whole(
    drafted: Store,
    settings: Settings,
    traffic: Traffic,
) -> None:
    """Held-out requests in it would fail every gate."""
    lost = traffic(8)
    (path,) = drafted.samples.folder.rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-30])
    traffic(10, held_out=False)
    with pytest.raises(SegmentDamaged):
        run_once(drafted, settings, "default", "me")
    assert set(turns(drafted, settings)) <= {RunState.PUBLISHED, RunState.REJECTED}
    aside = drafted.suspects.list()
    assert {each.request_id for each in aside} == {each.request_id for each in lost}
    assert "osd replay purge --segment" in aside[0].reason


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("fault", [-3, 0, 10_000, 1_000_000])
def test_positions_that_are_no_places_are_set_aside_by_name_and_the_run_succeeds(
    drafted: Store, settings: Settings, traffic: Traffic, fault: int, held_out: bool
) -> None:
    """In the middle, where neither the first nor the last position tells of it; of learners and of judges."""
    (whole,) = drafted_one = traffic(1, held_out=held_out, tenant="gone")
    drafted.samples.purge(request_id=whole.request_id)
    positions = whole.positions.copy()
    positions[len(positions) // 2] = fault
    drafted.samples.add([replace(drafted_one[0], request_id=new_id(), positions=positions)])
    good = traffic(10, held_out=False)
    run = run_once(drafted, settings, "default", "me")
    assert run is not None and run.state in (RunState.PUBLISHED, RunState.REJECTED)
    (aside,) = drafted.suspects.list()
    assert "not places" in aside.reason and aside.request_id not in {each.request_id for each in good}


@pytest.mark.parametrize("which", ["learner", "judge", "replayed"])
def test_what_fails_a_run_is_found_wherever_it_is_and_nobody_else_is_blamed(
    drafted: Store, settings: Settings, traffic: Traffic, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """A fault that nobody thought of, in what a batch is made of."""
    real = collate.collate

    def failing(samples: list[RequestSamples], *arguments: object) -> object:
        if any(each.tenant == "poison" for each in samples):
            raise IndexError("out of range")
        return real(samples, *arguments)  # type: ignore[arg-type]

    if which == "replayed":
        bad = traffic(1, held_out=False, **POISON)
        traffic(9, held_out=False)
        assert RunState.FAILED not in turns(drafted, settings)
    for module in ("scores", "epoch"):
        monkeypatch.setattr(f"trainer.distil.{module}.collate", failing)
    good = traffic(5, held_out=False)
    if which != "replayed":
        bad = traffic(1, held_out=which == "judge", **POISON)
    good += traffic(5, held_out=False)
    states = turns(drafted, settings)
    assert states.count(RunState.FAILED) == 1 and states[0] is RunState.FAILED
    assert [each.request_id for each in drafted.suspects.list()] == [bad[0].request_id]
    learned = {each for run in drafted.runs.list() if run.state is not RunState.FAILED for each in run.request_ids}
    assert {each.request_id for each in good} <= learned


def test_a_run_that_a_full_disk_ended_blames_no_request(
    drafted: Store,
    settings: Settings,
    traffic: Traffic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreWriteFailed(path="weights", reason="No space left on device")

    sent = traffic(8, held_out=False)
    with monkeypatch.context() as broken:
        broken.setattr(draft_learner, "stage", full)
        with pytest.raises(OsdError):
            run_once(drafted, settings, "default", "me")
    run = run_once(drafted, settings, "default", "me")
    assert run is not None and set(run.request_ids) == {s.request_id for s in sent}


def test_lost_runs_make_suspects_the_third_time(drafted: Store, settings: Settings, traffic: Traffic) -> None:
    """A request may kill its worker; a worker may be killed without any."""
    traffic(8, held_out=False)
    sizes = []
    for _ in range(5):
        run = drafted.runs.claim("default", new_id(), ClaimTerms(1, 0, -1))
        assert run is not None
        sizes.append(len(run.request_ids))
    assert sizes == [8, 8, 8, 4, 2]
