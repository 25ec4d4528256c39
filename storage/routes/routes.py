"""The routes (which draft serves which kind of traffic) and the audit trail of their changes.

    storage.routes.route_rows     changes within a transaction
    storage.routes.route_names    renaming, and what is kept under former names
    storage.routes.matches        what a route may match by

Each method below is one transaction, with its line in the trail. ``who`` is the
person's login and host if None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from storage.records import DEFAULT_ROUTE, Route
from storage.redaction import Redactor
from storage.routes import route_names, route_rows
from storage.routes.examples import teach
from storage.sql.audit import AuditEntry
from storage.sql.database import Database
from storage.sql.tables import RouteRow

Routes = list[Route]
Changes = list[AuditEntry]


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """The routing plan: everything that requests are routed by, at one revision."""

    routes: tuple[Route, ...] = (Route(),)
    """All routes: the default first, then by name."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Tenant (``*``: every other) -> route."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Former name -> present name."""
    revision: int = 0
    """The newest change's number."""


class RouteTable:
    """The table of routes; ``default`` always exists."""

    def __init__(self, db: Database, redactor: Redactor) -> None:
        self._db, self._redactor = db, redactor

    # what there is

    def list(self) -> Routes:
        """Return every route, in order of name."""
        return [route_rows.to_record(row) for row in self._db.read(route_rows.all_rows)]

    def get(self, name: str) -> Route:
        """Return a route. Raises UnknownRoute."""
        return route_rows.to_record(self._db.read(route_rows.get_row, name))

    def created(self) -> dict[str, float | None]:
        """Return route -> time of creation in Unix seconds; None where an older release did not record it."""
        return {row.name: row.created_at for row in self._db.read(route_rows.all_rows)}

    def pins(self) -> dict[str, str]:
        """Return tenant (``*`` for every other) -> route."""
        return self._db.read(route_rows.pins)

    def plan(self) -> RoutePlan:
        """Return routes, pins and former names in one consistent snapshot."""
        with self._db.session(read_only=True) as session:
            if self._db.dialect == "postgresql":  # else each query would have its own snapshot
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            revision = route_rows.revision(session)
            rows = route_rows.all_rows(session)
            routes = [route_rows.to_record(row) for row in rows]
            routes.sort(key=lambda route: route.name != DEFAULT_ROUTE)
            return RoutePlan(tuple(routes), route_rows.pins(session), route_names.aliases(session), revision)

    def revision(self) -> int:
        """Return the id of the newest change; it rises with every change."""
        return self._db.read(route_rows.revision)

    def history(self, route: str | None = None, limit: int = 100) -> Changes:
        """Return the newest changes, newest first, optionally of one route, its former names included."""
        return self._db.read(route_rows.history, route, limit)

    # changes

    @contextmanager
    def _changing(self) -> Iterator[Session]:
        """Open a transaction that changes routes, one after another."""
        with self._db.session() as session:
            route_rows.lock_routes(session)
            yield session

    def add(self, route: Route, who: str | None = None) -> Route:
        """Add a route. Raises DuplicateRoute, BadInput, BadPattern, UnknownDraft, RouteWithoutDraft."""
        with self._changing() as session:
            return route_rows.add(session, route, who)

    def change(self, route: Route, who: str | None = None) -> Route:
        """Replace the route of that name by this one. Raises UnknownRoute, and what :meth:`add` raises."""
        with self._changing() as session:
            return route_rows.change(session, route, who)

    def remove(self, name: str, who: str | None = None) -> Route:
        """Remove a route with its pins; stored data stays until purged. Raises UnknownRoute, DefaultRoute."""
        with self._changing() as session:
            return route_rows.remove(session, name, who)

    def rename(self, name: str, to: str, who: str | None = None) -> Route:
        """Rename a route with its pins, samples and counters; the old name leads to it until another route takes that.

        Raises UnknownRoute, DefaultRoute, DuplicateRoute, BadInput.
        """
        with self._changing() as session:
            return route_names.rename(session, name, to, who)

    def pin(self, tenant: str, route: str, who: str | None = None) -> None:
        """Pin a tenant's requests (``*``: everybody else's) to a route, whatever they ask for. Raises UnknownRoute."""
        with self._changing() as session:
            route_rows.pin(session, tenant, route, who)

    def unpin(self, tenant: str, who: str | None = None) -> None:
        """Remove a tenant's pin. Raises NotFound for a tenant that is not pinned."""
        with self._changing() as session:
            route_rows.unpin(session, tenant, who)

    def apply(
        self,
        routes: Sequence[Route],
        pins: Mapping[str, str],
        who: str | None = None,
        *,
        examples: Sequence[tuple[str, str]] = (),
        replace: bool = False,
    ) -> int:
        """Add or change all of these routes, pins and examples (topic, text) at once; ``replace`` removes the other
        routes and pins, ``default`` aside.

        Returns the number of changes made. Raises what :meth:`add`, :meth:`pin` and ``examples.teach`` raise, with
        nothing changed.
        """
        with self._changing() as session:
            before = route_rows.revision(session)
            if replace:
                for tenant in route_rows.pins(session).keys() - pins.keys():
                    route_rows.unpin(session, tenant, who)
            for route in routes:
                known = session.get(RouteRow, route.name) is not None
                (route_rows.change if known else route_rows.add)(session, route, who)
            for tenant, name in pins.items():
                route_rows.pin(session, tenant, name, who)
            teach(session, examples, who, self._redactor)
            if replace:
                _remove_others({route.name for route in routes}, session, who)
            session.flush()
            return route_rows.count_since(session, before)


def _remove_others(kept: set[str], session: Session, who: str | None) -> None:
    for row in route_rows.all_rows(session):
        if row.name not in kept and row.name != DEFAULT_ROUTE:
            route_rows.remove(session, row.name, who)
