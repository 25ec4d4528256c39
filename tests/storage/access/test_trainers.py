"""Training processes: who lives, what they do, and what people ask of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage import records
from storage.access.processes import FORGET_SECONDS, Trainer, TrainerState
from storage.errors import UnknownTrainer, WrongState
from storage.store import Store
from tests.storage.conftest import Clock

DOING = {"draft": "default", "since": 1.0, "step": 3, "steps": 9}


def training(name: str = "tower:7:ab", **facts: object) -> Trainer:
    """A trainer with a run under way, heard of now."""
    now = records.now()
    return replace(Trainer(name, "tower", 7, now, now, now + 10, DOING), **facts)  # type: ignore[arg-type]


def test_what_a_trainer_does_is_known_until_it_is_not_heard_of(store: Store, clock: Clock) -> None:
    first = training()
    assert store.trainers.beat(first) == first
    clock.seconds += 1
    second = training("box:8:cd", doing={"note": "nothing waits"})
    assert store.trainers.beat(second) == second
    clock.seconds += 1
    assert store.trainers.list() == [first, second]
    assert [one.state for one in store.trainers.list()] == [TrainerState.TRAINING, TrainerState.IDLE]
    clock.seconds += 8.5
    assert [one.state for one in store.trainers.list()] == [TrainerState.GONE, TrainerState.IDLE]
    store.trainers.end(second.id)
    store.trainers.end(second.id)
    clock.seconds += FORGET_SECONDS + 20
    store.trainers.beat(training("new:9:ef"))
    assert [one.id for one in store.trainers.list()] == ["new:9:ef"], "one that was killed is forgotten after an hour"


def test_it_hears_that_it_is_to_wait_and_to_go_on(store: Store, clock: Clock) -> None:
    store.trainers.beat(training())
    assert store.trainers.pause("tower").paused and store.trainers.pause("tower:7").paused
    assert store.trainers.beat(training()).state is TrainerState.PAUSED
    store.trainers.pause("tower", undo=True)
    assert store.trainers.beat(training()).state is TrainerState.TRAINING
    lines = store.trail.history(action="trainer")
    assert [(line.action, line.before, line.after) for line in lines] == [
        ("trainer resume", {"paused": True}, {"paused": False}),
        ("trainer pause", {"paused": False}, {"paused": True}),
    ]


def test_a_run_is_given_up_once(store: Store, clock: Clock) -> None:
    store.trainers.beat(training())
    store.trainers.cancel("tower")
    assert store.trainers.beat(training()).cancels
    assert not store.trainers.beat(training(doing={}), cancelled=True).cancels
    with pytest.raises(WrongState, match="idle, and cancelling needs a run under way"):
        store.trainers.cancel("tower")


def test_only_one_that_lives_and_is_meant_alone_can_be_asked(store: Store, clock: Clock) -> None:
    for name in ("tower:7:ab", "tower:8:cd"):
        store.trainers.beat(training(name))
    for ask in (store.trainers.pause, store.trainers.cancel):
        for name in ("tower", "nobody"):
            with pytest.raises(UnknownTrainer, match="known: tower:7:ab, tower:8:cd"):
                ask(name)
    clock.seconds += 11
    with pytest.raises(UnknownTrainer, match="known: none"):
        store.trainers.pause("tower:7")
