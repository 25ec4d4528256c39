"""Sums of outcomes: right by every key and stretch of time, and nothing lost between writers at once."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import BadInput
from storage.outcomes.outcome_window import Window
from storage.outcomes.outcomes import OutcomeStore
from storage.settings import Settings
from storage.sql.spans import DAY, HOUR, KEPT, MINUTE, by_span, cover
from storage.store import Store, open_store
from tests.storage.child import join, start_child
from tests.storage.make import add_root, outcome

DATABASES = True  # see conftest.py


def test_sums_and_measures(store: Store) -> None:
    store.outcomes.add([outcome(), outcome(requests=0, rounds=2, drafted=8, accepted=2, rejections=2, emitted=4)], "a")
    store.outcomes.add([outcome()], "a")
    (row,) = store.outcomes.acceptance()
    assert (row.requests, row.rounds, row.drafted, row.accepted) == (2, 22, 88, 62)
    assert (row.rejections, row.emitted, row.prompt_tokens) == (18, 84, 36)
    assert (row.draft_ms, row.verify_ms) == (4.5, 7.5)
    assert row.alpha == 62 / 80
    assert row.draft_acceptance_rate == 62 / 88
    assert row.mean_acceptance_length == 84 / 22
    assert row.discard_rate == 26 / 84
    assert row.verification_rate == 22 / 84
    assert row.as_dict()["alpha"] == row.alpha


def test_nothing_drafted_has_no_rate(store: Store) -> None:
    assert store.outcomes.acceptance() == []
    store.outcomes.add([], "a")
    store.outcomes.add([outcome(rounds=40, drafted=0, accepted=0, rejections=0)], "a")
    (row,) = store.outcomes.acceptance()
    assert (row.alpha, row.draft_acceptance_rate, row.mean_acceptance_length) == (None, None, 1.0)


def test_groups(store: Store) -> None:
    for route, version, controller, tenant, worker in (
        ("sql", "v1", "fixed", "t1", "a"), ("sql", "v2", "fixed", "t2", "a"), ("chat", "v2", "analytic", "t1", "b"),
    ):  # fmt: skip
        store.outcomes.add([outcome(route=route, draft_version=version, controller=controller, tenant=tenant)], worker)

    def requests(*by: str, **filters: str) -> dict[tuple[str, ...], int]:
        return {tuple(row.by.values()): row.requests for row in store.outcomes.acceptance(by, Window(**filters))}

    assert requests("route") == {("chat",): 1, ("sql",): 2}
    assert requests("version") == {("v1",): 1, ("v2",): 2}
    assert requests("version", "route") == {("v1", "sql"): 1, ("v2", "chat"): 1, ("v2", "sql"): 1}
    assert requests("tenant", "controller") == {("t1", "analytic"): 1, ("t1", "fixed"): 1, ("t2", "fixed"): 1}
    assert requests("worker") == {("a",): 2, ("b",): 1}
    assert requests("engine") == {("osd",): 3}
    store.outcomes.add([outcome(route="sql", draft_version="v3", controller="vllm")], "gpu-1")
    assert requests("engine", "version")[("gpu-1", "v3")] == 1
    assert requests("engine") == {("gpu-1",): 1, ("osd",): 3}
    assert requests(route="sql") == {(): 3}
    with pytest.raises(BadInput, match="known: route, version"):
        store.outcomes.acceptance(["colour"])


def test_a_draft_is_that_of_its_versions(store: Store, tmp_path: Path) -> None:
    ours, other = add_root(store, tmp_path / "a"), add_root(store, tmp_path / "b", "other")
    store.outcomes.add([outcome(draft_version=ours), outcome(draft_version=other), outcome(draft_version="gone")], "a")
    (row,) = store.outcomes.acceptance(["version"], Window(draft="default"))
    assert (row.by, row.requests) == ({"version": ours}, 1)


def test_time(store: Store) -> None:
    day = 20_000 * DAY
    times = [day - 1, day, day + 59, day + 60, day + HOUR, day + 5 * HOUR + 61, day + DAY]
    store.outcomes.add([outcome(finished_at=float(time)) for time in times], "a")

    def counts(by: str, **bounds: float) -> dict[int, int]:
        return {row.by[by]: row.requests for row in store.outcomes.acceptance([by], Window(**bounds))}

    assert counts("day") == {day - DAY: 1, day: 5, day + DAY: 1}
    assert counts("hour", since=day, until=day + DAY) == {day: 3, day + HOUR: 1, day + 5 * HOUR: 1}
    assert counts("minute", since=day, until=day + 61) == {day: 2, day + 60: 1}
    assert counts("day", since=day + 30, until=day + 6 * HOUR) == {day: 5}, "a day that is asked for in part"
    for since in (None, *times):
        for until in (None, *times):
            low = -1.0 if since is None else since // 60 * 60
            high = 1e12 if until is None else -(-until // 60) * 60
            expected = sum(low <= time < high for time in times)
            assert sum(row.requests for row in store.outcomes.acceptance(window=Window(since, until))) == expected


@given(st.one_of(st.none(), st.integers(-(10**6), 10**6)), st.one_of(st.none(), st.integers(-(10**6), 10**6)))
def test_pieces_cover_each_minute_once(since: int | None, until: int | None) -> None:
    for coarsest in (MINUTE, HOUR, DAY):
        pieces = cover(since, until, coarsest)
        for minute in range(-(10**6) // 60 * 60 - 600, 10**6 + 600, 7980):
            wanted = (since is None or minute + 60 > since) and (until is None or minute < until)
            if since is not None and until is not None and since // 60 * 60 >= until:
                wanted = False
            hits = sum(
                (piece.start is None or piece.start <= minute) and (piece.end is None or minute < piece.end)
                for piece in pieces
            )
            assert hits == wanted, (minute, pieces)
        assert all(piece.span <= coarsest for piece in pieces)
        assert all(bound is None or bound % piece.span == 0 for piece in pieces for bound in (piece.start, piece.end))


def test_the_log_holds_the_newest(store: Store, tmp_path: Path) -> None:
    version = add_root(store, tmp_path / "a")
    log = OutcomeStore(store.db, log_rows=5)
    for number in range(8):
        log.add([outcome(request_id=f"r{number}", draft_version=version, finished_at=1e6 + number)], "a")
    assert [line.request_id for line in log.recent()] == ["r7", "r6", "r5", "r4", "r3"]
    assert log.recent(request_id="r6") == [outcome(request_id="r6", draft_version=version, finished_at=1e6 + 6)]
    assert log.recent(request_id="r0") == []
    assert [line.request_id for line in log.recent(since=1e6 + 6)] == ["r7", "r6"]
    assert log.acceptance()[0].requests == 8


def test_recent_by_version(store: Store, tmp_path: Path) -> None:
    ours = add_root(store, tmp_path / "a")
    store.outcomes.add([outcome(request_id=f"r{n}", draft_version=ours) for n in range(4)], "a")
    store.outcomes.add([outcome(draft_version="another")], "a")
    assert [line.request_id for line in store.outcomes.recent(version=ours, limit=3)] == ["r3", "r2", "r1"]


def test_writers_at_once_lose_nothing(settings: Settings) -> None:
    """Four processes of twenty batches of seven; two share a name, and so the rows."""
    with open_store(settings) as store:
        children = [start_child(settings, "write", "20", worker) for worker in ("a", "a", "b", "c")]
        assert [join(child) for child in children] == [0] * 4
        for by in ((), ("minute",), ("hour",), ("worker",)):
            assert sum(row.requests for row in store.outcomes.acceptance(by)) == 560
        assert len(store.outcomes.recent(limit=999)) == 560


def test_sums_by_span_are_those_of_each_span_by_itself() -> None:
    chance = random.Random(3)
    added = [
        ((chance.uniform(0, 30 * DAY), chance.choice("ab")), (chance.randint(0, 9), 1.0)) for _ in range(500)
    ]  # fmt: skip
    plain: dict[tuple[int, int, str], list[float]] = defaultdict(lambda: [0, 0])
    for (seconds, key), counts in added:
        for span in KEPT:
            total = plain[span, int(seconds // span) * span, key]
            total[:] = [total[0] + counts[0], total[1] + counts[1]]
    assert by_span(added) == sorted(plain.items())
