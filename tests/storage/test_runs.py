"""Leases and claims: one worker a draft, nothing lost, nothing done twice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage.errors import LeaseHeld, LeaseLost, NotFound, UnknownDraft, WrongState
from storage.records import RunState, TrainingRun
from storage.runs import ClaimTerms
from storage.settings import Settings
from storage.store import Store, open_store
from tests.storage.conftest import Clock
from tests.storage.make import add_root, at_once, samples, write_weights

DATABASES = True  # see conftest.py


@pytest.fixture
def ready(keep_all: Store, tmp_path: Path) -> Store:
    """A draft with weights, and six requests that wait."""
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([samples(number) for number in range(6)])
    return keep_all


def claim(store: Store, holder: str = "one", **changes: Any) -> TrainingRun | None:
    return store.runs.claim("default", holder, replace(ClaimTerms(4, 1e9, 60.0), **changes))


def claimed(store: Store, holder: str = "one", **changes: Any) -> TrainingRun:
    run = claim(store, holder, **changes)
    assert run is not None
    return run


def test_a_claim_takes_what_waits_oldest_first(ready: Store) -> None:
    run = claimed(ready, settings={"loss": "forward_kl"})
    assert run.request_ids == tuple(f"r{number}" for number in range(6))
    assert run.parent == ready.versions.current("default").id
    began = {"why": "interval", "words": "4 requests or more waited"}
    facts = {"loss": "forward_kl", "began": began}
    assert (run.state, run.settings, run.finished_at) == (RunState.CLAIMED, facts, None)
    assert ready.runs.get(run.id) == run
    assert ready.samples.waiting("default").requests == 0


def test_nothing_is_claimed_before_it_is_due(ready: Store, clock: Clock) -> None:
    assert claim(ready, min_requests=7) is None
    oldest = samples(0).created_at
    clock.seconds = oldest + 100
    assert claim(ready, min_requests=7, max_age_seconds=200) is None
    run = claimed(ready, min_requests=7, max_age_seconds=50)
    assert run.settings["began"] == {"why": "age", "words": "the oldest request had waited 100 s"}


def test_age_alone_does_not_claim_nothing(ready: Store) -> None:
    claimed_run = claimed(ready)
    ready.runs.finish(claimed_run, RunState.REJECTED)
    assert claim(ready, min_requests=1, max_age_seconds=0) is None


def test_a_limit_leaves_the_rest(ready: Store) -> None:
    run = claimed(ready, max_requests=4)
    assert run.request_ids == ("r0", "r1", "r2", "r3")
    ready.runs.finish(run, RunState.REJECTED)
    assert claimed(ready, min_requests=1).request_ids == ("r4", "r5")


def test_a_draft_without_weights_cannot_be_claimed(keep_all: Store) -> None:
    for draft in ("default", "nobody"):
        with pytest.raises(UnknownDraft):
            keep_all.runs.claim(draft, "one", ClaimTerms(1, 0, 1))


def test_a_live_lease_keeps_others_out(ready: Store) -> None:
    claimed(ready)
    with pytest.raises(LeaseHeld, match="one"):
        claim(ready, "two", min_requests=1)


def test_two_drafts_are_trained_at_once(ready: Store, tmp_path: Path) -> None:
    add_root(ready, tmp_path / "other", "other")
    claimed(ready)
    assert ready.runs.claim("other", "two", ClaimTerms(1, 0, 60)) is None


def test_a_dead_workers_claim_returns(ready: Store, clock: Clock) -> None:
    dead = claimed(ready)
    clock.seconds += 59
    with pytest.raises(LeaseHeld):
        claim(ready, "two")
    clock.seconds += 2
    taken = claimed(ready, "two")
    assert taken.request_ids == dead.request_ids
    lost = ready.runs.get(dead.id)
    assert (lost.state, lost.finished_at) == (RunState.LOST, clock.seconds)
    assert "one" in lost.result["reason"]


def test_an_expired_claim_returns_even_when_nothing_else_is_due(ready: Store, clock: Clock) -> None:
    claimed(ready, max_requests=2)
    clock.seconds += 61
    assert claim(ready, "two", min_requests=99) is None
    assert ready.samples.waiting("default").requests == 6
    assert [run.state for run in ready.runs.list("default")] == [RunState.LOST]


def test_heartbeats_keep_a_lease(ready: Store, clock: Clock) -> None:
    run = claimed(ready)
    for _ in range(5):
        clock.seconds += 50
        run = ready.runs.heartbeat(run, 60)
        assert (run.heartbeat_at, run.lease_until) == (clock.seconds, clock.seconds + 60)
    with pytest.raises(LeaseHeld):
        claim(ready, "two")


def test_a_worker_that_slept_goes_on_if_nobody_took_over(ready: Store, clock: Clock) -> None:
    run = claimed(ready)
    clock.seconds += 600
    assert ready.runs.heartbeat(run, 60).lease_until == clock.seconds + 60


def test_who_lost_the_lease_can_do_nothing(ready: Store, clock: Clock) -> None:
    dead = claimed(ready)
    candidate = ready.versions.stage(
        "default", dead.parent, "full", lambda folder: write_weights(folder, 1), run_id=dead.id
    )
    clock.seconds += 61
    taken = claimed(ready, "two")
    for attempt in (
        lambda: ready.runs.heartbeat(dead, 60),
        lambda: ready.versions.publish(candidate.id, {}, run=dead),
        lambda: ready.runs.finish(dead, RunState.FAILED),
        lambda: ready.runs.finish(dead, RunState.PUBLISHED, candidate.id),
    ):
        with pytest.raises(LeaseLost):
            attempt()
    assert ready.versions.current("default").number == 0
    assert ready.runs.get(taken.id).state is RunState.CLAIMED
    assert ready.samples.waiting("default").requests == 0, "the other run's claim stands"


def test_a_failed_run_frees_its_requests(ready: Store) -> None:
    run = claimed(ready)
    failed = ready.runs.finish(run, RunState.FAILED, result={"reason": "diverged", "loss": float("nan")})
    assert (failed.state, failed.result) == (RunState.FAILED, {"reason": "diverged", "loss": None})
    assert ready.runs.finish(run, RunState.FAILED).result == failed.result
    assert claimed(ready, "two").request_ids == run.request_ids


def test_a_rejected_run_keeps_what_it_used(ready: Store) -> None:
    run = claimed(ready)
    ready.runs.finish(run, RunState.REJECTED, "v", {"loss": 1.0})
    assert ready.runs.get(run.id).version == "v"
    assert claim(ready, min_requests=1, max_age_seconds=0) is None
    assert ready.samples.recent("default", claimed=True, limit=9) == [f"r{number}" for number in (5, 4, 3, 2, 1, 0)]
    with pytest.raises(WrongState):
        ready.runs.finish(run, RunState.FAILED)


def test_runs_are_listed_newest_first(ready: Store, clock: Clock) -> None:
    ids = []
    for _ in range(3):
        clock.seconds += 1
        run = claimed(ready, max_requests=1, min_requests=1)
        ready.runs.finish(run, RunState.REJECTED)
        ids.insert(0, run.id)
    assert [run.id for run in ready.runs.list("default")] == ids
    assert [run.id for run in ready.runs.list(limit=2)] == ids[:2]
    with pytest.raises(NotFound):
        ready.runs.get("nobody")


def test_of_many_claims_at_once_one_succeeds(ready: Store, settings: Settings) -> None:
    """Each claimant has connections of its own, as workers in processes have."""

    def attempt(holder: str) -> TrainingRun | None:
        with open_store(settings) as mine:
            return claim(mine, holder)

    results = at_once(*[partial(attempt, f"w{number}") for number in range(6)])
    assert sorted(type(result).__name__ for result in results) == ["LeaseHeld"] * 5 + ["TrainingRun"]


def test_taking_over_at_once_makes_one_run(ready: Store, settings: Settings, clock: Clock) -> None:
    claimed(ready)
    clock.seconds += 61
    test_of_many_claims_at_once_one_succeeds(ready, settings)
    states = sorted(run.state.value for run in ready.runs.list())
    assert states == ["claimed", "lost"]


# what learns from the same requests beside the draft


@pytest.fixture
def headed(ready: Store, tmp_path: Path) -> Store:
    """The same, and the draft has an acceptance head."""
    write_weights(tmp_path / "head", 7.0)
    ready.versions.register_root("default.head", tmp_path / "head")
    return ready


def beside(store: Store, **changes: Any) -> TrainingRun | None:
    return store.runs.claim_beside("default.head", "default", "one", replace(ClaimTerms(2, 1e9, 60.0), **changes))


def names(*numbers: int) -> tuple[str, ...]:
    return tuple(f"r{number}" for number in numbers)


def test_what_is_taken_beside_stays_free_for_the_draft(headed: Store) -> None:
    run = beside(headed)
    assert run is not None and run.draft == "default.head" and run.request_ids == names(*range(6))
    assert headed.samples.waiting("default").requests == 6
    assert claimed(headed).request_ids == run.request_ids  # both at once: a lease each
    with pytest.raises(LeaseHeld):
        beside(headed)


@pytest.mark.parametrize("state", [RunState.PUBLISHED, RunState.REJECTED])
def test_a_judged_run_moves_on_and_only_what_came_later_is_new(headed: Store, state: RunState) -> None:
    run = beside(headed, max_requests=4)
    assert run is not None and run.request_ids == names(0, 1, 2, 3)
    headed.runs.finish(run, state)
    run = beside(headed)
    assert run is not None and run.request_ids == names(4, 5)
    headed.runs.finish(run, state)
    assert beside(headed, min_requests=1, max_age_seconds=0) is None
    headed.samples.add([samples(6)])
    assert beside(headed) is None  # two make a run
    headed.samples.add([samples(7)])
    run = beside(headed)
    assert run is not None and run.request_ids == names(6, 7)


def test_what_a_failed_or_lost_run_took_beside_is_taken_again(headed: Store, clock: Clock) -> None:
    first = beside(headed, max_requests=2)
    assert first is not None
    headed.runs.finish(first, RunState.REJECTED)
    clock.seconds += 1
    for _ in range(2):
        failed = beside(headed)
        assert failed is not None and failed.request_ids == names(2, 3, 4, 5)
        headed.runs.finish(failed, RunState.FAILED)
        clock.seconds += 1
    beside(headed)
    clock.seconds += 61
    again = beside(headed)
    assert again is not None and again.request_ids == names(2, 3, 4, 5)
    assert headed.samples.waiting("default").requests == 6


def test_beside_needs_a_version_to_start_from(ready: Store) -> None:
    with pytest.raises(UnknownDraft):
        beside(ready)
