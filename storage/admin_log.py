"""The audit trail of what admins did to what is kept; routes have their own (:mod:`storage.route_log`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage import records
from storage.drivers import plain
from storage.route_log import login
from storage.tables import AdminChangeRow


@dataclass(frozen=True, slots=True)
class AdminChange:
    """One thing that an admin did."""

    id: int
    at: float
    """Unix seconds."""
    who: str
    action: str
    """forget, purge, compact, retain, import, export, tenant, key, promote or rollback."""
    subject: str | None
    """The request, tenant, file, key or version that it was about; None where it was about many."""
    facts: Mapping[str, Any]
    """What came of it: counts and names, never a prompt."""


def note(session: Session, who: str | None, action: str, subject: str | None, facts: Mapping[str, Any]) -> None:
    """Write a change down, in the transaction that makes it or right after."""
    session.add(AdminChangeRow(
        at=records.now(), who=who or login(), action=action, subject=subject, facts=plain(facts)
    ))  # fmt: skip


def history(session: Session, subject: str | None = None, limit: int = 50) -> list[AdminChange]:
    """The newest changes, newest first; about one subject where it is given."""
    query = select(AdminChangeRow).order_by(AdminChangeRow.id.desc()).limit(limit)
    if subject is not None:
        query = query.where(AdminChangeRow.subject == subject)
    return [AdminChange(r.id, r.at, r.who, r.action, r.subject, r.facts) for r in session.scalars(query)]
