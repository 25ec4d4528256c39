"""The lines of the audit trail that are about routes; the newest one's id is the revision by which routers notice a
change.

Each change locks the default route's row first. So changes happen one after another, and their ids rise in the order
in which they become visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from storage.records import DEFAULT_ROUTE
from storage.sql import audit
from storage.sql.audit import AuditEntry
from storage.sql.tables import AuditRow, RouteAliasRow, RouteRow

GROUP = "router"
CHANGES = "add", "change", "remove", "rename", "pin", "unpin", "teach", "forget", "background"
OF_ROUTES = tuple(f"{GROUP} {action}" for action in CHANGES)
"""The changes that routers go by."""


def lock_routes(session: Session) -> None:
    """Wait for other changes of routes, and make them wait until this transaction ends."""
    session.get_one(RouteRow, DEFAULT_ROUTE, with_for_update=True)


def note(
    session: Session, who: str | None, action: str, route: str | None, before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> None:  # fmt: skip
    """Record a change within its own transaction, with the routes locked."""
    audit.note(session, f"{GROUP} {action}", route, after, before, who=who)


def revision(session: Session) -> int:
    """Return the id of the newest change; 0 before there was one."""
    return session.scalar(select(func.max(AuditRow.id)).where(AuditRow.action.in_(OF_ROUTES))) or 0


def count_since(session: Session, earlier: int) -> int:
    """Return the number of changes after a revision."""
    return session.scalar(select(func.count()).where(AuditRow.id > earlier, AuditRow.action.in_(OF_ROUTES))) or 0


def history(session: Session, route: str | None, limit: int) -> list[AuditEntry]:
    """Return the newest changes, newest first, optionally of one route, its former names included."""
    if route is None:
        return audit.history(session, limit=limit, action=GROUP)
    former = session.scalars(select(RouteAliasRow.name).where(RouteAliasRow.route == route))
    return audit.history(session, [route, *former], limit, action=GROUP)
