"""Changes of routes within a caller's transaction, each with its line in the audit trail.

Each change locks the default route's row first. So changes happen one after another, and the ids of their lines rise in
the order in which they become visible: the newest one's id is the revision by which routers notice a change. An error
leaves nothing behind, because it ends the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from storage import records
from storage.errors import (
    BadInput,
    DefaultRoute,
    DuplicateRoute,
    NotFound,
    RouteWithoutDraft,
    UnknownDraft,
    UnknownRoute,
)
from storage.records import DEFAULT_DRAFT, DEFAULT_ROUTE, Route
from storage.routes.matches import checked
from storage.sql import audit
from storage.sql.audit import AuditEntry, AuditRow
from storage.sql.ledger import NAME, known_drafts
from storage.sql.tables import DraftRow, RouteAliasRow, RoutePinRow, RouteRow, VersionRow

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


def to_record(row: RouteRow) -> Route:
    """Convert a row to a record."""
    return Route(row.name, row.draft, row.matches, tuple(row.candidates))


def as_facts(route: Route) -> dict[str, Any]:
    """Return a route as a dictionary, as the audit trail and exports contain it."""
    return {
        "name": route.name, "draft": route.draft, "candidates": list(route.candidates), "matches": dict(route.matches),
    }  # fmt: skip


def all_rows(session: Session) -> list[RouteRow]:
    """Return every route, in order of name."""
    return list(session.scalars(select(RouteRow).order_by(RouteRow.name)))


def get_row(session: Session, name: str) -> RouteRow:
    """Return a route's row. Raises UnknownRoute."""
    if row := session.get(RouteRow, name):
        return row
    raise UnknownRoute(route=name, known=", ".join(row.name for row in all_rows(session)))


def add(session: Session, route: Route, who: str | None) -> Route:
    """Add a route. Raises DuplicateRoute, BadInput, BadPattern, UnknownDraft, RouteWithoutDraft."""
    require_name(route.name)
    if session.get(RouteRow, route.name) is not None:
        raise DuplicateRoute(route=route.name)
    kept = _checked(session, route)
    session.execute(delete(RouteAliasRow).where(RouteAliasRow.name == route.name))  # the name means another route now
    session.add(RouteRow(
        name=kept.name, draft=kept.draft, matches=dict(kept.matches), candidates=list(kept.candidates),
        created_at=records.now(),
    ))  # fmt: skip
    session.flush()
    note(session, who, "add", kept.name, {}, as_facts(kept))
    return kept


def change(session: Session, route: Route, who: str | None) -> Route:
    """Replace the draft, candidates and matches of the route of that name; no change, no line in the trail."""
    row = get_row(session, route.name)
    kept, before = _checked(session, route), to_record(row)
    if kept == before:
        return kept
    if kept.name == DEFAULT_ROUTE and kept.matches:
        raise DefaultRoute(route=kept.name, action="given anything to match", reason="it takes what matches no other")
    row.draft, row.matches, row.candidates = kept.draft, dict(kept.matches), list(kept.candidates)
    note(session, who, "change", kept.name, as_facts(before), as_facts(kept))
    return kept


def remove(session: Session, name: str, who: str | None) -> Route:
    """Remove a route with its pins and former names; data stored under its name stays. Raises UnknownRoute,
    DefaultRoute."""
    row = get_row(session, name)
    require_not_default(name, "removed")
    gone, pinned = to_record(row), pins_of(session, name)
    session.execute(delete(RoutePinRow).where(RoutePinRow.route == name))
    session.execute(delete(RouteAliasRow).where(RouteAliasRow.route == name))
    session.delete(row)
    session.flush()
    note(session, who, "remove", name, as_facts(gone) | {"pinned": pinned}, {})
    return gone


def pin(session: Session, tenant: str, name: str, who: str | None) -> None:
    """Pin a tenant's requests (``*``: everybody's) to a route, whatever they ask for. Raises UnknownRoute, BadInput."""
    if not tenant.strip():
        raise BadInput(reason="A pin needs a tenant, or * for every tenant.")
    get_row(session, name)
    before = session.get(RoutePinRow, tenant)
    if before is not None and before.route == name:
        return
    was = {} if before is None else {"tenant": tenant, "route": before.route}
    session.merge(RoutePinRow(tenant=tenant, route=name))
    note(session, who, "pin", name, was, {"tenant": tenant, "route": name})


def unpin(session: Session, tenant: str, who: str | None) -> None:
    """Remove a tenant's pin. Raises NotFound for a tenant that is not pinned."""
    row = session.get(RoutePinRow, tenant)
    if row is None:
        known = ", ".join(sorted(pins(session))) or "none"
        raise NotFound(reason=f"The tenant {tenant!r} is pinned to no route; pinned: {known}.")
    session.delete(row)
    note(session, who, "unpin", row.route, {"tenant": tenant, "route": row.route}, {})


def pins(session: Session) -> dict[str, str]:
    """Return tenant -> route."""
    return {row.tenant: row.route for row in session.scalars(select(RoutePinRow))}


def pins_of(session: Session, name: str) -> list[str]:
    """Return the tenants that are pinned to a route."""
    return [tenant for tenant, route in sorted(pins(session).items()) if route == name]


def require_name(name: str) -> None:
    """Raise BadInput for an invalid name of a route."""
    if not NAME.fullmatch(name):
        raise BadInput(reason=f"{name!r} cannot name a route: use letters, digits, '.', '_' and '-', 64 at most.")


def require_not_default(name: str, action: str) -> None:
    """Raise DefaultRoute if the name is the default route's."""
    if name == DEFAULT_ROUTE:
        raise DefaultRoute(route=name, action=action, reason="it takes every request that no other route takes")


def _checked(session: Session, route: Route) -> Route:
    _require_drafts(session, route.name, route.drafts)
    return Route(route.name, route.draft, checked(route.matches), route.drafts[1:])


def _require_drafts(session: Session, name: str, drafts: Sequence[str]) -> None:
    """Require that each draft exists and has weights; only the default draft may still wait for its first server."""
    for draft in drafts:
        row = session.get(DraftRow, draft) if draft else None
        if not draft:
            raise RouteWithoutDraft(route=name, reason="none is named")
        if row is None:
            raise UnknownDraft(draft=draft, known=known_drafts(session))
        if row.current_version is None and draft != DEFAULT_DRAFT:
            raise RouteWithoutDraft(route=name, reason=f"{draft!r} has no weights")
        if row.current_version and session.get_one(VersionRow, row.current_version).kind == "head":
            raise RouteWithoutDraft(route=name, reason=f"{draft!r} are acceptance heads")
