"""Between its turns the worker holds the store within its limits, and what it trains on is written down."""

from __future__ import annotations

import logging

from storage import records
from storage.settings import RetentionSettings, Settings
from trainer.worker.schedule import TrainingSchedule


def kept(store) -> int:
    return sum(row.requests for row in store.samples.stats())


def limited(settings: Settings, **limits: object) -> Settings:
    return settings.model_copy(update={"retention": RetentionSettings(**limits)})  # type: ignore[arg-type]


def test_what_was_trained_on_is_released_and_the_rest_stays(drafted, settings, traffic, never) -> None:
    traffic(10, held_out=False)
    traffic(3, held_out=True)
    turns = TrainingSchedule(drafted, limited(settings, release=True), never)
    (run,) = turns.take_turn()
    assert run.request_ids and kept(drafted) == 3, "held-out requests judge the next candidate too"
    assert drafted.forgetter.forget([run.request_ids[0]]).learned.versions == (run.version,)


def test_limits_are_looked_at_every_so_often(drafted, settings, traffic, never, monkeypatch) -> None:
    turns = TrainingSchedule(drafted, limited(settings, requests=5, every_seconds=60), never, only="nobody")
    traffic(8)
    turns.take_turn()
    assert kept(drafted) == 5
    traffic(4)
    turns.take_turn()
    assert kept(drafted) == 9, "not at every turn"
    later = records.now() + 61
    monkeypatch.setattr(records, "now", lambda: later)
    turns.take_turn()
    assert kept(drafted) == 5


def test_a_damaged_segment_is_told_and_stops_no_turn(drafted, settings, traffic, never, caplog) -> None:
    traffic(6)
    (path,) = drafted.samples.folder.rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with caplog.at_level(logging.ERROR, "osd.trainer"):
        assert TrainingSchedule(drafted, limited(settings, requests=2), never, only="nobody").take_turn() == []
    assert "cannot be read" in caplog.text


def test_a_run_writes_down_what_it_replays_and_whose_it_is(drafted, settings, traffic, never) -> None:
    first = traffic(8, held_out=False, tenant="acme")
    turns = TrainingSchedule(drafted, settings, never)
    runs = turns.take_turn()
    traffic(8, held_out=False, tenant="zeta")
    runs += turns.take_turn()
    drafted.samples.purge(everything=True)
    of_acme = drafted.forgetter.forget(tenant="acme").learned.versions
    assert all(run.version in of_acme for run in runs) and len(runs) == 2
    of_one = drafted.forgetter.forget([first[0].request_id]).learned.versions
    assert all(run.version in of_one for run in runs)
    of_zeta = drafted.forgetter.forget(tenant="zeta").learned.versions
    assert runs[1].version in of_zeta and runs[0].version not in of_zeta
