"""What is purged is gone: from the answers, from the index, and from the disk's files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import BadInput, NotFound, SegmentDamaged, StoreError, UnknownRequest
from storage.records import RunState
from storage.runs import ClaimTerms
from storage.settings import load_settings
from storage.sql.ledger import lock_draft
from storage.store import Store, open_store
from tests.storage.conftest import Clock
from tests.storage.make import add_root, assert_same, at_once, claim, outcome, samples
from tests.storage.places import GARBAGE, Lying, segments_of

PLACED = True  # see conftest.py


def tokens_on_disk(lying: Lying) -> set[int]:
    """Every token in every file of a place, whatever the index says; what is not a segment has none."""
    found: set[int] = set()
    for name in lying.names():
        table = pq.read_table(pa.BufferReader(lying.read(name)), columns=["tokens"])
        for row in table["tokens"].to_pylist():
            found.update(row)
    return found


def marked(number: int, **changes: object) -> object:
    """A request all of whose tokens are its own number plus a million."""
    return samples(number, tokens=np.full(9, 1_000_000 + number, np.int32), **changes)


@pytest.fixture
def filled(store: Store) -> Store:
    """Six requests in two segments, tenants in turn."""
    store.samples.add([marked(number, tenant=f"t{number % 2}") for number in range(4)])
    store.samples.add([marked(number, tenant="t1", route="sql") for number in range(4, 6)])
    store.outcomes.add([outcome(request_id=f"r{number}", tenant=f"t{number % 2}") for number in range(4)], "w")
    return store


def left(store: Store) -> list[int]:
    """Numbers of the requests left, by the index and by the files, which must agree."""
    kept = sorted(int(request_id[1:]) for request_id in store.samples.recent(limit=99))
    assert tokens_on_disk(segments_of(store)) == {1_000_000 + number for number in kept}
    for each in store.samples.read([f"r{number}" for number in kept]):
        assert set(each.tokens.tolist()) == {1_000_000 + int(each.request_id[1:])}
    return kept


def test_purging_a_request(filled: Store) -> None:
    before = sum(row.bytes for row in filled.samples.stats())
    purged = filled.samples.purge(request_id="r2")
    assert (purged.requests, purged.segments) == (1, 1)
    assert left(filled) == [0, 1, 3, 4, 5]
    assert sum(row.bytes for row in filled.samples.stats()) == before - purged.bytes
    assert filled.outcomes.recent(request_id="r2") == []
    (neighbour,) = filled.samples.read(["r3"])
    assert_same(neighbour, marked(3, tenant="t1", created_at=neighbour.created_at))


def test_purging_a_tenant(filled: Store) -> None:
    purged = filled.samples.purge(tenant="t1")
    assert (purged.requests, purged.segments) == (4, 2)
    assert left(filled) == [0, 2]
    assert {line.tenant for line in filled.outcomes.recent()} == {"t0"}
    assert filled.samples.purge(tenant="t1").requests == 0


def test_purging_by_route_time_and_both(filled: Store) -> None:
    created = {each.request_id: each.created_at for each in filled.samples.read([f"r{n}" for n in range(6)])}
    assert filled.samples.purge(before=created["r4"], route="sql").requests == 0
    assert filled.samples.purge(before=created["r1"]).requests == 1
    assert filled.samples.purge(route="sql").requests == 2
    assert left(filled) == [1, 2, 3]
    assert len(filled.outcomes.recent()) == 4, "the log goes with a request or a tenant only"


def test_purging_everything(filled: Store, clock: Clock) -> None:
    segments_of(filled).write(GARBAGE, b"left by a crash")
    assert filled.samples.purge(everything=True).requests == 6
    assert left(filled) == []
    assert segments_of(filled).names() == []
    assert filled.outcomes.recent() == []
    assert filled.outcomes.acceptance()[0].requests == 4, "sums name no request"


def test_a_purge_needs_a_condition_and_something_to_meet_it(filled: Store) -> None:
    for arguments in ({}, {"tenant": "t1", "everything": True}):
        with pytest.raises(BadInput, match="what to purge"):
            filled.samples.purge(**arguments)
    with pytest.raises(UnknownRequest):
        filled.samples.purge(request_id="nobody")
    with pytest.raises(NotFound):
        filled.samples.purge(segment="nowhere")
    assert left(filled) == [0, 1, 2, 3, 4, 5]


def test_a_request_that_left_an_outcome_only_can_be_purged(filled: Store) -> None:
    filled.outcomes.add([outcome(request_id="unlearned")], "w")
    assert filled.samples.purge(request_id="unlearned").requests == 0
    assert filled.outcomes.recent(request_id="unlearned") == []


def test_a_damaged_segment_stops_no_other_and_can_be_dropped_whole(filled: Store) -> None:
    segment = _segment_of(filled, "r1")
    (name,) = [name for name in segments_of(filled).names() if segment in name]
    segments_of(filled).write(name, segments_of(filled).read(name)[:-30])
    with pytest.raises(SegmentDamaged, match=segment):
        filled.samples.purge(tenant="t1")
    assert sorted(filled.samples.recent(limit=9)) == ["r0", "r1", "r2", "r3"], "the sound segment was purged"
    assert filled.samples.purge(segment=segment).requests == 4
    assert left(filled) == []


def _segment_of(store: Store, request_id: str) -> str:
    return store.samples._segments_of([request_id])[request_id]


def test_a_missing_segment_can_be_dropped(filled: Store) -> None:
    segment = _segment_of(filled, "r1")
    segments_of(filled).remove(next(name for name in segments_of(filled).names() if segment in name))
    with pytest.raises(SegmentDamaged, match="missing"):
        filled.samples.purge(request_id="r1")
    assert filled.samples.purge(segment=segment).requests == 4
    assert left(filled) == [4, 5]


def test_a_claim_survives_the_purge_of_a_neighbour(keep_all: Store, tmp_path: Path) -> None:
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([marked(number) for number in range(3)])
    run = claim(keep_all)
    keep_all.samples.purge(request_id="r1")
    assert [each.request_id for each in keep_all.samples.read(run.request_ids)] == ["r0", "r2"]
    assert keep_all.samples.waiting("default").requests == 0


def test_a_purge_waits_its_turn_behind_a_claim(postgres_url: str, memory: Path) -> None:
    """It asks for the draft before it changes any row, as a claim does, so the two cannot wait in a circle."""
    settings = load_settings(storage={"directory": memory, "url": postgres_url + "?options=-c%20lock_timeout%3D50"})
    with open_store(settings) as store:
        store.samples.add([marked(1)])
        with store.db.session() as session:
            lock_draft(session, "default")
            with pytest.raises(StoreError, match="lock timeout"):
                store.samples.purge(request_id="r1")
        assert store.samples.purge(request_id="r1").requests == 1


def test_claims_and_purges_at_once_do_not_wait_in_a_circle(keep_all: Store, tmp_path: Path) -> None:
    add_root(keep_all, tmp_path / "model")
    for number in range(0, 24, 4):
        keep_all.samples.add([marked(number + each) for each in (3, 1, 0, 2)])

    def train() -> None:
        for _ in range(10):
            run = keep_all.runs.claim("default", "w", ClaimTerms(1, 0, 60))
            if run is not None:
                keep_all.runs.finish(run, RunState.FAILED)

    def purge() -> None:
        for number in range(0, 24, 4):
            keep_all.samples.purge(request_id=f"r{number}")

    assert at_once(train, purge) == [None, None]
    assert keep_all.samples.waiting("default").requests == 18
    assert left(keep_all) == [number for number in range(24) if number % 4]


def test_purges_at_once_leave_what_neither_asked_for(store: Store) -> None:
    store.samples.add([marked(number) for number in range(12)])
    purged = at_once(*[partial(store.samples.purge, request_id=f"r{number}") for number in range(5)])
    assert [getattr(each, "requests", each) for each in purged] == [1] * 5
    assert left(store) == list(range(5, 12))
    assert len(segments_of(store).names()) == 1
