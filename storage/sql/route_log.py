"""The audit trail of routes: who changed what, when, from what to what.

Each change locks the default route's row first. So changes happen one after another, their ids rise in the order in
which they become visible, and the newest id is the revision by which routers notice a change.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from storage import records
from storage.records import DEFAULT_ROUTE
from storage.sql.drivers import plain
from storage.sql.tables import RouteAliasRow, RouteChangeRow, RouteRow


@dataclass(frozen=True, slots=True)
class RouteChange:
    """One change of the routes, or of what routes are chosen by."""

    id: int
    at: float
    """Unix seconds."""
    who: str
    action: str
    """add, change, remove, rename, pin, unpin, teach, forget or background."""
    route: str | None
    """The route's name before the change; None where the change concerns no route."""
    before: Mapping[str, Any]
    """Empty for something new."""
    after: Mapping[str, Any]
    """Empty for something removed."""


def login() -> str:
    """Return the name and host of this process's user, for the audit trail."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def lock_routes(session: Session) -> None:
    """Wait for other changes of routes, and make them wait until this transaction ends."""
    session.get_one(RouteRow, DEFAULT_ROUTE, with_for_update=True)


def note(
    session: Session, who: str | None, action: str, route: str | None, before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> None:  # fmt: skip
    """Record a change within its own transaction, with the routes locked."""
    session.add(
        RouteChangeRow(
            at=records.now(), who=who or login(), action=action, route=route, before=plain(before), after=plain(after)
        )
    )


def revision(session: Session) -> int:
    """Return the id of the newest change; 0 before there was one."""
    return session.scalar(select(func.max(RouteChangeRow.id))) or 0


def count_since(session: Session, earlier: int) -> int:
    """Return the number of changes after a revision."""
    return session.scalar(select(func.count()).where(RouteChangeRow.id > earlier)) or 0


def history(session: Session, route: str | None, limit: int) -> list[RouteChange]:
    """Return the newest changes, newest first, optionally of one route, its former names included."""
    query = select(RouteChangeRow).order_by(RouteChangeRow.id.desc()).limit(limit)
    if route is not None:
        former = select(RouteAliasRow.name).where(RouteAliasRow.route == route)
        query = query.where(or_(RouteChangeRow.route == route, RouteChangeRow.route.in_(former)))
    return [_to_record(row) for row in session.scalars(query)]


def _to_record(row: RouteChangeRow) -> RouteChange:
    return RouteChange(row.id, row.at, row.who, row.action, row.route, row.before, row.after)
