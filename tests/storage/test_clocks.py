"""A stamp of a wrong clock: no lease and no presence lasts longer than its own length, and nothing stays newest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage import records
from storage.access.processes import FORGET_SECONDS, ServerState, ServingProcess, Trainer, TrainerState
from storage.errors import LeaseHeld
from storage.runs import ClaimTerms
from storage.sql import database
from storage.store import Store
from tests.storage.conftest import Clock
from tests.storage.make import add_root, samples

DATABASES = True  # see conftest.py
LENGTH = 60.0
TERMS = ClaimTerms(1, 1e9, LENGTH, max_requests=1)
OFFSETS = [sign * 10.0**power * LENGTH for power in range(-1, 5) for sign in (-1, 1)]
"""How far a writer's clock is off: from 6 s to a week, either way."""


def server(at: float) -> ServingProcess:
    return ServingProcess("a", "here", 7, "http://here", at, at, at + LENGTH)


def trainer(at: float) -> Trainer:
    return Trainer("a", "here", 7, at, at, at + LENGTH)


@pytest.mark.parametrize("off", OFFSETS)
def test_nothing_lasts_longer_than_its_length_after_its_clock_was_put_right(
    keep_all: Store, clock: Clock, tmp_path: Path, off: float
) -> None:
    """Its writer died. Where it was less far ahead than its length, it may have been in time: it lasts twice that."""
    right, store = clock.seconds, keep_all
    add_root(store, tmp_path / "model")
    store.engines.add("e", "http://e", "default", {})
    store.samples.add([samples(number, created_at=right - 5) for number in range(2)])
    clock.seconds = right + off
    run = store.runs.claim("default", "one", TERMS)
    assert run is not None and store.engines.hold("e", "one", LENGTH)
    store.servers.beat(server(clock.seconds))
    store.trainers.beat(trainer(clock.seconds))
    clock.seconds = right + (2 if 0 < off <= LENGTH else 1) * LENGTH + 1
    assert store.servers.list()[0].state is ServerState.GONE and store.trainers.list()[0].state is TrainerState.GONE
    assert store.engines.hold("e", "two", LENGTH)
    again = store.runs.claim("default", "two", TERMS)
    assert again is not None and again.request_ids == run.request_ids
    store.servers.beat(replace(server(clock.seconds), id="b"))
    assert len(store.servers.list()) == (1 if abs(off) > 1.5 * FORGET_SECONDS else 2)  # nor is it listed for a week


@pytest.mark.parametrize("off", OFFSETS)
def test_where_the_database_has_a_clock_that_of_a_machine_does_not_matter(
    keep_all: Store, clock: Clock, tmp_path: Path, off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's machine is off by so much all the time, the reader's is not: what lives is held, to its end."""
    right, store = clock.seconds, keep_all
    for module in ("storage.sql.database", "storage.access.processes"):
        monkeypatch.setattr(f"{module}.ahead", lambda _: right + shift - clock.seconds)
    add_root(store, tmp_path / "model")
    store.samples.add([samples(number, created_at=right - 5) for number in range(2)])
    shift, clock.seconds = 0.0, right + off
    assert store.runs.claim("default", "one", TERMS)
    store.servers.beat(server(clock.seconds))
    store.trainers.beat(trainer(clock.seconds))
    clock.seconds = right
    shift = LENGTH - 1
    assert store.servers.list()[0].state is ServerState.SERVING
    with pytest.raises(LeaseHeld):
        store.runs.claim("default", "two", TERMS)
    shift = LENGTH + 1
    clock.seconds = right + shift
    assert store.servers.list()[0].state is ServerState.GONE and store.trainers.list()[0].state is TrainerState.GONE
    assert store.runs.claim("default", "two", TERMS)


def test_postgresqls_own_clock_is_asked(keep_all: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's is a day ahead."""
    time = records.time.time
    monkeypatch.setattr(database.time, "time", lambda: time() + 86_400)
    with keep_all.db.session(read_only=True) as session:
        found = database.ahead(session)
    assert found == (0.0 if keep_all.db.dialect == "sqlite" else pytest.approx(-86_400, abs=60))


@pytest.mark.parametrize("off", [60.0, 86_400.0, 3e7])
def test_what_is_dated_ahead_is_newest_until_a_run_claims_and_no_longer(
    keep_all: Store, clock: Clock, tmp_path: Path, off: float
) -> None:
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([samples(0, created_at=clock.seconds + off), samples(1, created_at=clock.seconds - 10)])
    assert keep_all.runs.claim("default", "one", replace(TERMS, max_requests=2))
    clock.seconds += 10
    keep_all.samples.add([samples(2, created_at=clock.seconds)])
    newest = keep_all.samples.recent("default", limit=2)
    assert newest == ["r2", "r0"]
    assert [each.created_at for each in keep_all.samples.read(newest)] == [clock.seconds, clock.seconds - 10]
