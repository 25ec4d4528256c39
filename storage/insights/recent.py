"""The newest requests one by one, to the second: the sums of outcomes know minutes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from storage.insights.statistics import Bucket
from storage.outcomes.outcome_window import hurried
from storage.records import ratio
from storage.sql.database import Database
from storage.sql.outcome_tables import OutcomeRow
from storage.sql.tables import VersionRow


@dataclass(frozen=True, slots=True)
class ServedPart:
    """The part of one request that was decoded under one version."""

    route: str
    requests: int
    """1, or 0 for the earlier parts of a request that lived through a swap."""
    accepted: int
    rejections: int
    emitted: int
    rounds: int

    @property
    def judged(self) -> int:
        """Drafted tokens that the target judged."""
        return self.accepted + self.rejections


def served(db: Database, version: str, since: float, limit: int) -> list[ServedPart]:
    """Return the newest parts that ended at ``since`` (Unix seconds) or later, newest first."""
    columns = (getattr(OutcomeRow, name) for name in ServedPart.__dataclass_fields__)
    query = select(*columns).where(OutcomeRow.draft_version == version, OutcomeRow.finished_at >= since)
    return [ServedPart(*row) for row in db.rows(query.order_by(OutcomeRow.id.desc()).limit(limit))]


QUIET = 20
"""Newest requests without a drafted token after which a draft is said to draft nothing."""
SUMS = ("requests", "rounds", "drafted", "accepted", "rejections", "emitted", "draft_ms", "verify_ms")


@dataclass(frozen=True, slots=True)
class DraftTraffic:
    """Sums over the outcomes that the log holds."""

    requests: int
    rounds: int
    drafted: int
    accepted: int
    rejections: int
    emitted: int
    seconds: float
    """Drafting and verifying, counting each request's own share of its batch's time."""

    @property
    def alpha(self) -> float | None:
        """Token acceptance rate α; None where nothing was judged."""
        return ratio(self.accepted, self.accepted + self.rejections)


def traffic(db: Database, draft: str, since: float) -> DraftTraffic:
    """Return the sums over what finished at ``since`` (Unix seconds) or later."""
    *counts, draft_ms, verify_ms = summed(db, SUMS, *_of(draft, since))
    requests, rounds, drafted, accepted, rejections, emitted = map(int, counts)
    seconds = (draft_ms + verify_ms) / 1000
    return DraftTraffic(requests, rounds, drafted, accepted, rejections, emitted, seconds)


def summed(db: Database, names: Sequence[str], *wanted: ColumnElement[bool]) -> Sequence[float]:
    """Return the sums of these columns over the outcomes that the log holds and that are wanted."""
    query = select(*(func.coalesce(func.sum(getattr(OutcomeRow, name)), 0) for name in names))
    return [float(each) for each in hurried(db, query.where(*wanted))[0]]


def judged_requests(db: Database, draft: str, since: float, limit: int) -> list[tuple[float, Bucket]]:
    """Return (finished at, (accepted, judged) tokens) of the newest requests since then, newest first."""
    columns = OutcomeRow.finished_at, OutcomeRow.accepted, OutcomeRow.rejections
    query = select(*columns).where(*_of(draft, since)).order_by(OutcomeRow.id.desc()).limit(limit)
    return [(at, (accepted, accepted + rejections)) for at, accepted, rejections in hurried(db, query)]


def judged_by_route(db: Database, draft: str, limit: int) -> dict[str, list[Bucket]]:
    """Return by route the (accepted, judged) tokens of the newest requests that a draft's line served."""
    query = select(OutcomeRow.route, OutcomeRow.accepted, OutcomeRow.rejections).where(*_of(draft, 0.0))
    found: dict[str, list[Bucket]] = {}
    for route, accepted, rejections in hurried(db, query.order_by(OutcomeRow.id.desc()).limit(limit)):
        found.setdefault(route, []).append((accepted, accepted + rejections))
    return found


def undrafted(db: Database) -> list[str]:
    """Return what there is to say of each draft that served the newest requests and drafted nothing for ``QUIET`` of
    them: its α is 0 ÷ 0, and no fall of it is ever seen."""
    row = OutcomeRow
    newest = select(row.draft_version).order_by(row.id.desc()).limit(QUIET)
    known = row.draft_version.in_(select(VersionRow.id)) & row.draft_version.in_(newest)
    last = select(row.draft_version, func.max(case((row.drafted > 0, row.id), else_=0))).where(known)
    with db.session(read_only=True) as session:
        drafted = session.execute(last.group_by(row.draft_version)).all()
        return [said for version, at in drafted if (said := _silence(session, version, at))]


def _silence(session: Session, version: str, last: int) -> str | None:
    """Return since when a version drafts nothing, ``last`` being the outcome in which it last did; None where too few
    requests came since to say so."""
    row, own = OutcomeRow, OutcomeRow.draft_version == version
    quiet = select(func.sum(row.requests), func.min(row.finished_at), func.max(row.controller))
    requests, since, rule = session.execute(quiet.where(own, row.id > last)).one()
    if (requests or 0) < QUIET:
        return None
    judged = select(func.sum(row.accepted), func.sum(row.rejections)).where(own, row.id <= last)
    right, wrong = (count or 0 for count in session.execute(judged).one())
    alpha = ratio(right, right + wrong)
    was = "nothing of it was ever judged" if alpha is None else f"α was {alpha:.2f} while it drafted"
    time = f"{datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M} UTC"
    return f"{version} drafts nothing since {time}, because {rule} asks for none: {was}."


def _of(draft: str, since: float) -> tuple[ColumnElement[bool], ...]:
    versions = select(VersionRow.id).where(VersionRow.draft == draft)
    return OutcomeRow.draft_version.in_(versions), OutcomeRow.finished_at >= since
