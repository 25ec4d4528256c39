"""A draft's traffic since a moment, to the second: the counters of outcomes know minutes."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select

from storage.insights.interval import Bucket
from storage.outcomes.outcome_window import hurry
from storage.records import ratio
from storage.sql.database import Database
from storage.sql.outcome_tables import OutcomeRow
from storage.sql.tables import VersionRow

SUMS = ("requests", "rounds", "drafted", "accepted", "rejections", "draft_ms", "verify_ms")


@dataclass(frozen=True, slots=True)
class DraftTraffic:
    """Sums over the outcomes that the log holds."""

    requests: int
    rounds: int
    drafted: int
    accepted: int
    rejections: int
    seconds: float
    """Drafting and verifying, counting each request's own share of its batch's time."""

    @property
    def alpha(self) -> float | None:
        """Token acceptance rate α; None where nothing was judged."""
        return ratio(self.accepted, self.accepted + self.rejections)


def traffic(db: Database, draft: str, since: float) -> DraftTraffic:
    """Return the sums over what finished at ``since`` (Unix seconds) or later."""
    query = select(*(func.coalesce(func.sum(getattr(OutcomeRow, name)), 0) for name in SUMS))
    with db.session(read_only=True) as session:
        hurry(session)
        *counts, draft_ms, verify_ms = session.execute(query.where(*_of(draft, since))).one()
    requests, rounds, drafted, accepted, rejections = map(int, counts)
    return DraftTraffic(requests, rounds, drafted, accepted, rejections, (draft_ms + verify_ms) / 1000)


def judged_requests(db: Database, draft: str, since: float, limit: int) -> list[tuple[float, Bucket]]:
    """Return (finished at, (accepted, judged) tokens) of the newest requests since then, newest first."""
    columns = OutcomeRow.finished_at, OutcomeRow.accepted, OutcomeRow.rejections
    query = select(*columns).where(*_of(draft, since)).order_by(OutcomeRow.id.desc()).limit(limit)
    with db.session(read_only=True) as session:
        hurry(session)
        return [(at, (accepted, accepted + rejections)) for at, accepted, rejections in session.execute(query)]


def _of(draft: str, since: float) -> tuple[ColumnElement[bool], ...]:
    versions = select(VersionRow.id).where(VersionRow.draft == draft)
    return OutcomeRow.draft_version.in_(versions), OutcomeRow.finished_at >= since
