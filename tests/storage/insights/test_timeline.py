"""Acceptance over time and its marks, against plain sums over the same outcomes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from storage.insights.timeline import LIVE_BUCKETS, lately, marks, timeline
from storage.records import Outcome
from storage.routes.proposals import ProposalKind
from storage.sql import audit
from storage.sql.spans import DAY, HOUR
from storage.store import Store
from tests.storage.make import add_root, outcome

NOW = 1_700_000_000.0


def made(count: int, apart: float) -> list[Outcome]:
    """Outcomes of two routes, one every ``apart`` seconds, the newest at NOW − 1."""
    routes = ("sql", "chat")
    return [
        outcome(route=routes[i % 2], finished_at=NOW - 1 - i * apart, accepted=30 - i % 7, rejections=8, emitted=40)
        for i in range(count)
    ]


def plainly(outcomes: list[Outcome], since: float, bucket: float) -> dict[tuple[str, float], tuple[int, float]]:
    found: dict[tuple[str, float], list[Outcome]] = {}
    for one in outcomes:
        if one.finished_at >= since:
            found.setdefault((one.route, one.finished_at // bucket * bucket), []).append(one)
    return {
        key: (len(ones), sum(o.accepted for o in ones) / sum(o.accepted + o.rejections for o in ones))
        for key, ones in found.items()
    }


@pytest.mark.parametrize(
    ("seconds", "apart", "bucket"),
    [(900, 2, 5), (900, 20, 10), (HOUR, 30, 60), (DAY, 600, HOUR), (60 * DAY, HOUR, DAY)],
)
def test_points_are_plain_sums(store: Store, seconds: float, apart: float, bucket: int) -> None:
    outcomes = made(200, apart)
    store.outcomes.add(outcomes, "a")
    since = NOW - seconds if seconds == 900 else (NOW - seconds) // 60 * 60  # sums reach to whole minutes
    found = timeline(store.db, since, NOW)
    assert found.bucket == bucket
    points = {(point.route, point.at): (point.requests, point.alpha) for point in found.points}
    assert points == plainly(outcomes, since, bucket)
    assert [point.at for point in found.points] == sorted(point.at for point in found.points)
    assert len({point.at for point in found.points}) <= LIVE_BUCKETS + 1


def test_an_empty_store_has_no_points(store: Store) -> None:
    for seconds in (900, DAY):
        assert timeline(store.db, NOW - seconds, NOW).points == []
    found = lately(store.db, NOW - 60, NOW)
    assert (found.requests, found.alpha, found.length, found.gamma, found.tokens_per_second) == (0, None, None, None, 0)


def test_the_last_minute(store: Store) -> None:
    outcomes = made(100, 2)
    store.outcomes.add(outcomes, "a")
    found = lately(store.db, NOW - 60, NOW)
    last = [one for one in outcomes if one.finished_at >= NOW - 60]
    assert found.requests == len(last) and found.requests_per_second == len(last) / 60
    assert found.tokens_per_second == pytest.approx(sum(o.emitted for o in last) / 60)
    assert found.gamma == sum(o.drafted for o in last) / sum(o.rounds for o in last)
    assert found.decode_ms == pytest.approx(sum(o.draft_ms + o.verify_ms for o in last))


def test_marks(store: Store, tmp_path: Path) -> None:
    root = add_root(store, tmp_path / "root")
    with store.db.session() as session:
        audit.note(session, "drafts promote", root, {}, who="me")
        audit.note(session, "replay purge", None, {}, who="me")
    store.proposals.add(ProposalKind.DRIFT, {"routes": ["sql"], "score": 1.0})
    store.versions.quarantine(root, "a test")
    since = time.time() - 60
    found = [(mark.kind, mark.subject) for mark in marks(store.db, since, time.time() + 1)]
    assert found == [("promote", root), ("drift", "sql"), ("rollback", root)]
    assert marks(store.db, since - 100, since) == []
