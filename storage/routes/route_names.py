"""Former names of routes, and the data stored under them.

A renamed route takes its samples and counters along by a change of the index in SQL, which reads go by
(a Parquet segment keeps the name that it was written with). Servers hear of it a moment later, and running requests
still have the old name; so that name leads to the route until another one takes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from storage.errors import DuplicateRoute
from storage.records import DEFAULT_ROUTE, Route
from storage.routes.route_rows import as_facts, get_row, note, require_name, require_not_default, to_record
from storage.sql.ledger import lock_all_drafts
from storage.sql.outcome_tables import OutcomeRow, rename_route
from storage.sql.tables import RouteAliasRow, RoutePinRow, RouteRow, SampleRow


class Named(Protocol):
    """A record that carries its route's name."""

    @property
    def route(self) -> str: ...


N = TypeVar("N", bound=Named)


def aliases(session: Session) -> dict[str, str]:
    """Return former name -> present name."""
    return {row.name: row.route for row in session.scalars(select(RouteAliasRow))}


def under_present_names(session: Session, items: Iterable[N]) -> list[N]:
    """Return records about to be stored under their routes' present names.

    Waits for a renaming under way, which would otherwise miss them.
    """
    session.execute(select(RouteRow.name).where(RouteRow.name == DEFAULT_ROUTE).with_for_update(read=True))
    names = aliases(session)
    return [replace(item, route=names[item.route]) if item.route in names else item for item in items]  # type: ignore[type-var]


def rename(session: Session, name: str, to: str, who: str | None) -> Route:
    """Rename a route. Raises UnknownRoute, DefaultRoute, DuplicateRoute, BadInput."""
    row = get_row(session, name)
    require_not_default(name, "renamed")
    require_name(to)
    if session.get(RouteRow, to) is not None:
        raise DuplicateRoute(route=to)
    before = to_record(row)
    after = replace(before, name=to)
    session.execute(insert(RouteRow).values(
        name=to, draft=row.draft, matches=row.matches, candidates=row.candidates, created_at=row.created_at
    ))  # fmt: skip
    _move(session, name, to)
    session.delete(row)
    session.flush()
    session.execute(delete(RouteAliasRow).where(RouteAliasRow.name == to))
    session.add(RouteAliasRow(name=name, route=to))
    note(session, who, "rename", name, as_facts(before), as_facts(after))
    return after


def _move(session: Session, name: str, to: str) -> None:
    """Move everything that refers to the route. Claims change the same samples, so the drafts are locked first."""
    lock_all_drafts(session)
    for table in (RoutePinRow, RouteAliasRow, SampleRow, OutcomeRow):
        column: Any = table.route
        session.execute(update(table).where(column == name).values(route=to))
    rename_route(session, name, to)
