"""Requests on which training failed: retried in halves until those that cause it are isolated, and set aside.

A failed run leaves its requests as a group of suspects. New requests are claimed apart from them, so that traffic
is still learned from; a retry takes half of a group, and its result halves the group again. A request is set
aside, with the reason, once it has failed alone, ``FAILURES`` times in all, and a run without it was judged meanwhile:
where every run fails, the requests are not the cause. A run that was lost with its worker counts from the third time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, case, func, select, update
from sqlalchemy.orm import Session

from storage import records
from storage.records import RunState
from storage.sql.database import Repository, changed_rows, chunks
from storage.sql.tables import RunRow, SampleRow

FAILURES = 3
"""Failed or lost runs before a request is set aside, or before lost ones make suspects."""
REASON_LENGTH = 1000
RETRY = "retry"
"""Key in the settings of a run that took suspects."""
IS_CLEAN = SampleRow.failed_in.is_(None)


@dataclass(frozen=True, slots=True)
class SetAside:
    """A request that no run takes any more."""

    request_id: str
    route: str
    segment_id: str
    failures: int
    reason: str


def note_failure(session: Session, run: RunRow, reason: str, *, lost: bool = False) -> None:
    """Make the requests that a failed or lost run had claimed suspects; call it before they are freed."""
    count = SampleRow.failures + 1
    group = case((count >= FAILURES, run.id), else_=SampleRow.failed_in) if lost else run.id
    claimed = SampleRow.claimed_by == run.id
    since = func.coalesce(SampleRow.failed_at, records.now())
    session.execute(update(SampleRow).where(claimed).values(failures=count, failed_in=group, failed_at=since))
    alone = session.execute(select(SampleRow.request_id, SampleRow.failures, SampleRow.failed_at).where(claimed)).all()
    if len(alone) == 1 and alone[0].failures >= FAILURES and _others_go(session, run.draft, alone[0].failed_at):
        session.execute(update(SampleRow).where(claimed).values(set_aside=reason[:REASON_LENGTH]))


def _others_go(session: Session, draft: str, since: float) -> bool:
    judged = RunRow.state.in_([RunState.PUBLISHED.value, RunState.REJECTED.value])
    return (
        session.scalar(select(RunRow.id).where(RunRow.draft == draft, judged, RunRow.started_at >= since).limit(1))
        is not None
    )


def half_of_a_group(
    session: Session, routes: Sequence[str], waiting: Sequence[ColumnElement[bool]], limit: int | None
) -> list[str]:
    """Return the older half of the group of suspects that failed together least often; empty where there is none."""
    here = (*waiting, SampleRow.route.in_(routes), ~IS_CLEAN)
    order = SampleRow.created_at, SampleRow.request_id
    group = session.scalar(select(SampleRow.failed_in).where(*here).order_by(SampleRow.failures, *order).limit(1))
    if group is None:
        return []
    found = list(
        session.scalars(select(SampleRow.request_id).where(*here, SampleRow.failed_in == group).order_by(*order))
    )
    return found[: (len(found) + 1) // 2][:limit]


class SuspectList(Repository):
    """The requests that were set aside."""

    def set_aside_segment(self, segment_id: str, reason: str) -> int:
        """Set a segment's unreadable requests aside, from training and judging; return how many."""
        wanted = SampleRow.segment_id == segment_id, SampleRow.set_aside.is_(None)
        with self._db.session() as session:
            done = session.execute(update(SampleRow).where(*wanted).values(set_aside=reason[:REASON_LENGTH]))
            return changed_rows(done)

    def set_aside(self, request_ids: Sequence[str], reason: str) -> None:
        """Set requests aside, from training and judging."""
        with self._db.session() as session:
            for some in chunks(request_ids):
                session.execute(update(SampleRow).where(SampleRow.request_id.in_(some)).values(set_aside=reason))

    def list(self, limit: int = 20) -> list[SetAside]:
        """Return the newest requests that were set aside."""
        columns = SampleRow.request_id, SampleRow.route, SampleRow.segment_id, SampleRow.failures, SampleRow.set_aside
        query = select(*columns).where(SampleRow.set_aside.is_not(None)).order_by(SampleRow.created_at.desc())
        rows: Sequence[Any] = self._db.rows(query.limit(limit))
        return [SetAside(*row) for row in rows]

    def retry(self) -> int:
        """Take back every request that was set aside, with its failures cleared; return how many."""
        fresh = {"set_aside": None, "failures": 0, "failed_in": None, "failed_at": None}
        with self._db.session() as session:
            done = session.execute(update(SampleRow).where(SampleRow.set_aside.is_not(None)).values(**fresh))
            return changed_rows(done)
