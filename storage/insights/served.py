"""Acceptance of single requests under one draft version: what a canary comparison works on."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from storage.sql.database import Database
from storage.sql.outcome_tables import OutcomeRow


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
    with db.session(read_only=True) as session:
        return [ServedPart(*row) for row in session.execute(query.order_by(OutcomeRow.id.desc()).limit(limit))]
