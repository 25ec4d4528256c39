"""The audit trail of admins' changes to stored data; routes have a trail of their own
(:mod:`storage.sql.route_log`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage import records
from storage.sql.drivers import plain
from storage.sql.route_log import login
from storage.sql.tables import AdminChangeRow


@dataclass(frozen=True, slots=True)
class AdminChange:
    """One change that an admin made."""

    id: int
    at: float
    """Unix seconds."""
    who: str
    action: str
    """forget, purge, compact, retain, import, export, tenant, key, promote, rollback or drain."""
    subject: str | None
    """The request, tenant, file, key, version or serving process that it concerned; None where it concerned many."""
    facts: Mapping[str, Any]
    """The change's results: counts and names, never a prompt."""


def note(session: Session, who: str | None, action: str, subject: str | None, facts: Mapping[str, Any]) -> int:
    """Record a change in the transaction that makes it, or right after, and return its id in the trail."""
    row = AdminChangeRow(at=records.now(), who=who or login(), action=action, subject=subject, facts=plain(facts))
    session.add(row)
    session.flush()
    return row.id


def add_facts(session: Session, number: int, facts: Mapping[str, Any]) -> None:
    """Add the results of a change that was recorded before it was made."""
    row = session.get_one(AdminChangeRow, number)
    row.facts = {**row.facts, **plain(facts)}


def history(session: Session, subject: str | None = None, limit: int = 50) -> list[AdminChange]:
    """Return the newest changes, newest first, optionally of one subject."""
    query = select(AdminChangeRow).order_by(AdminChangeRow.id.desc()).limit(limit)
    if subject is not None:
        query = query.where(AdminChangeRow.subject == subject)
    return [AdminChange(r.id, r.at, r.who, r.action, r.subject, r.facts) for r in session.scalars(query)]
