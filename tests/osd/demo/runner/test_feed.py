"""When the next request may start, over a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from osd.demo.runner import feed
from osd.demo.runner.feed import Free, Lockstep, PacedArrival, TrainerView, make_arrival
from osd.engine.engine import Engine
from storage.errors import BadSetting
from storage.records import RunState, TrainingRun
from storage.runs import ClaimTerms
from storage.settings import load_settings
from storage.store import Store, open_store
from tests.storage.make import samples
from tests.support.models import random_pair
from tests.support.settings import settings_of

INTERVAL = 4


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(feed, "LOOK_SECONDS", 0.0)
    with open_store(load_settings(storage={"directory": tmp_path / "data", "holdout": 0.0})) as store:
        random_pair().draft.module.save_pretrained(tmp_path / "draft")
        store.versions.register_root("default", tmp_path / "draft")
        yield store


def keep(store: Store, first: int, count: int) -> None:
    store.samples.add([samples(number) for number in range(first, first + count)])


def claim(store: Store) -> TrainingRun:
    run = store.runs.claim("default", "me", ClaimTerms(1, 60, 60))
    assert run is not None
    return run


def test_free_never_waits() -> None:
    assert Free().may_start(started=10_000, finished=0)


def test_paced_waits_for_the_trainer(store: Store) -> None:
    paced = PacedArrival(TrainerView(store, ["default"]), ahead=3)
    keep(store, 0, 2)
    assert paced.may_start(2, 2)
    keep(store, 2, 1)
    assert not paced.may_start(3, 3)
    claim(store)
    assert paced.may_start(3, 3)


def lockstep(store: Store, serving: str, recorded: bool = True) -> Lockstep:
    trainer, versions = TrainerView(store, ["default"]), {"default": serving}
    return Lockstep(trainer, INTERVAL, serving=lambda: versions, recorded=lambda: recorded)


def test_lockstep_goes_on_when_the_update_is_over(store: Store) -> None:
    step = lockstep(store, store.versions.current("default").id)
    assert all(step.may_start(started, started) for started in range(INTERVAL))
    keep(store, 0, INTERVAL)
    assert not step.may_start(INTERVAL, INTERVAL - 1)  # one is still being served
    assert not step.may_start(INTERVAL, INTERVAL)  # nothing has been claimed
    run = claim(store)
    assert not step.may_start(INTERVAL, INTERVAL)  # training
    store.runs.finish(run, RunState.REJECTED)
    assert step.may_start(INTERVAL, INTERVAL)
    assert step.may_start(2 * INTERVAL - 1, INTERVAL)
    keep(store, INTERVAL, INTERVAL)
    assert not step.may_start(2 * INTERVAL, 2 * INTERVAL)


def test_lockstep_waits_for_the_recorder_and_for_the_swap(store: Store) -> None:
    current = store.versions.current("default").id
    assert not lockstep(store, current, recorded=False).may_start(INTERVAL, INTERVAL)
    assert not lockstep(store, "an older version").may_start(INTERVAL, INTERVAL)
    assert lockstep(store, current).may_start(INTERVAL, INTERVAL)


def test_an_unknown_arrival_is_named(store: Store) -> None:
    with pytest.raises(BadSetting, match="sometimes"):
        make_arrival("sometimes", store, ["default"], Engine(random_pair(), settings_of()), INTERVAL)
