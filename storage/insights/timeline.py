"""Acceptance over the last minutes to months, by route, with the events in between, for the dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, Select, cast, func, select
from sqlalchemy.orm import Session

from storage.insights.recent import summed
from storage.outcomes.outcome_window import Window, grouped, hurried
from storage.records import VersionState, ratio
from storage.routes.proposals import ProposalKind
from storage.sql import audit
from storage.sql.database import Database
from storage.sql.outcome_tables import CounterRow as Sums
from storage.sql.outcome_tables import OutcomeRow
from storage.sql.spans import DAY, HOUR, MINUTE, SPANS
from storage.sql.tables import RouteProposalRow, VersionRow

COUNTS = ("requests", "rounds", "drafted", "accepted", "rejections", "emitted", "draft_ms", "verify_ms")
LIVE_SECONDS = 900.0
"""Longest stretch in seconds answered from single outcomes, where buckets may be shorter than a minute."""
LIVE_BUCKETS = 90
WIDTHS = (5, 10)
"""Bucket lengths in seconds of a live timeline: the smallest that makes at most LIVE_BUCKETS buckets is used."""
NEWEST = 200
"""Maximum number of marks of each kind."""
JUDGED_NO = (VersionState.CANDIDATE.value, VersionState.REJECTED.value)
LEFT = (VersionState.ROLLED_BACK.value, VersionState.QUARANTINED.value)


@dataclass(frozen=True, slots=True)
class Point:
    """The outcomes of one route in one bucket of time."""

    route: str
    at: float
    """Start of the bucket, Unix seconds."""
    requests: int
    accepted: int
    judged: int
    """Accepted tokens plus rejections."""
    alpha: float | None
    length: float | None
    """τ: tokens emitted a round."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on the timeline, with its subject."""

    at: float
    kind: str
    """``version`` (it passed the gate), ``promote``, ``rollback``, or ``drift``."""
    subject: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Points and marks in order of time, and the width of a bucket in seconds."""

    since: float
    until: float
    bucket: float
    points: list[Point]
    marks: list[Mark]


def timeline(db: Database, since: float, until: float) -> Timeline:
    """Return the timeline of all routes, in buckets wide enough that there are at most a few hundred."""
    seconds = until - since
    if seconds <= LIVE_SECONDS:
        bucket, points = _live(db, since, until)
    else:
        bucket = MINUTE if seconds <= 6 * HOUR else HOUR if seconds <= 10 * DAY else DAY
        points = _summed(db, since, until, bucket)
    return Timeline(since, until, bucket, points, marks(db, since, until))


def _live(db: Database, since: float, until: float) -> tuple[int, list[Point]]:
    first = db.scalar(select(func.min(OutcomeRow.finished_at)).where(OutcomeRow.finished_at >= since))
    needed = (until - (until if first is None else first)) / LIVE_BUCKETS
    bucket = next((width for width in WIDTHS if width >= needed), WIDTHS[-1])
    rows: Sequence[Any] = hurried(db, _buckets(since, bucket))
    return bucket, [_point(route, at, sums) for route, at, *sums in rows]


def _buckets(since: float, bucket: int) -> Select[Any]:
    second = cast(OutcomeRow.finished_at, Integer)
    start = (second - second % bucket).label("start")
    query = select(OutcomeRow.route, start, *(func.sum(getattr(OutcomeRow, name)) for name in COUNTS))
    return query.where(OutcomeRow.finished_at >= since).group_by(OutcomeRow.route, start).order_by(start)


def _summed(db: Database, since: float, until: float, bucket: int) -> list[Point]:
    name = next(name for name, span in SPANS.items() if span == bucket)
    found = db.read(grouped, Sums, Window(since, until), {"route": Sums.route, name: None}, COUNTS)
    return sorted((_point(str(key[0]), float(key[1]), sums) for key, sums in found.items()), key=lambda point: point.at)


def _point(route: str, at: float, sums: Sequence[Any]) -> Point:
    counts = dict(zip(COUNTS, map(float, sums), strict=True))
    requests, accepted, judged = (int(counts[name]) for name in ("requests", "accepted", "rejections"))
    judged += accepted
    length = ratio(counts["emitted"], counts["rounds"])
    return Point(route, float(at), requests, accepted, judged, ratio(accepted, judged), length)


def marks(db: Database, since: float, until: float) -> list[Mark]:
    """Return the newest events: versions published, promotions, rollbacks (an admin's and the watch's), drifted
    routes."""
    with db.session(read_only=True) as session:
        found = [*_versions(session), *_promotions(session), *_drifts(session)]
    return sorted((mark for mark in found if since <= mark.at <= until), key=lambda mark: mark.at)


def _versions(session: Session) -> Iterator[Mark]:
    columns = VersionRow.id, VersionRow.number, VersionRow.created_at, VersionRow.evidence
    given_out = VersionRow.state.not_in(JUDGED_NO), VersionRow.kind != "head"
    versions = select(*columns).where(*given_out).order_by(VersionRow.created_at.desc()).limit(NEWEST)
    for name, number, at, evidence in session.execute(versions):
        if number > 0:
            yield Mark(at, "version", name)
        yield from (Mark(evidence[why]["at"], "rollback", name) for why in LEFT if why in evidence)


def _promotions(session: Session) -> Iterator[Mark]:
    for change in audit.history(session, limit=NEWEST, action="drafts promote"):
        yield Mark(change.at, "promote", change.subject or "")


def _drifts(session: Session) -> Iterator[Mark]:
    rows = select(RouteProposalRow.at, RouteProposalRow.facts).where(RouteProposalRow.kind == ProposalKind.DRIFT.value)
    for at, facts in session.execute(rows.order_by(RouteProposalRow.id.desc()).limit(NEWEST)):
        yield Mark(at, "drift", ", ".join(facts.get("routes", ())))


@dataclass(frozen=True, slots=True)
class RecentTotals:
    """The newest outcomes, summed; rates are per second."""

    seconds: float
    """Length of the window in seconds."""
    requests: int
    requests_per_second: float
    tokens_per_second: float
    alpha: float | None
    length: float | None
    """Mean acceptance length τ."""
    gamma: float | None
    """Tokens drafted a round."""
    emitted: int
    decode_ms: float
    """Drafting and verifying, counting each request's own share of its batch's time."""


def lately(db: Database, since: float, until: float) -> RecentTotals:
    """Return the newest outcomes summed over all servers of the store."""
    found = summed(db, COUNTS, OutcomeRow.finished_at >= since, OutcomeRow.finished_at <= until)
    sums, seconds = dict(zip(COUNTS, found, strict=True)), max(1.0, until - since)
    return RecentTotals(
        seconds, int(sums["requests"]), sums["requests"] / seconds, sums["emitted"] / seconds,
        ratio(sums["accepted"], sums["accepted"] + sums["rejections"]), ratio(sums["emitted"], sums["rounds"]),
        ratio(sums["drafted"], sums["rounds"]), int(sums["emitted"]), sums["draft_ms"] + sums["verify_ms"],
    )  # fmt: skip
