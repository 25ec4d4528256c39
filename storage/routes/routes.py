"""Which draft serves which kind of traffic, and every change of that with who, when, before and after.

    storage.routes.route_rows     changes within a transaction
    storage.routes.route_names    renaming, and what is kept under former names
    storage.sql.route_log      the audit trail
    storage.routes.matches        what a route may match by

Each method below is one transaction: it happens whole, with its line in the trail, or not at all. ``who`` is the
person's login and host where nobody is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from storage.records import DEFAULT_ROUTE, Route
from storage.routes import route_names, route_rows
from storage.routes.examples import teach
from storage.sql import route_log
from storage.sql.database import Database
from storage.sql.route_log import RouteChange, lock_routes
from storage.sql.tables import RouteRow

Routes = list[Route]
Changes = list[RouteChange]


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """Everything that requests are routed by, as it was at one revision."""

    routes: tuple[Route, ...] = (Route(),)
    """The default first, then by name."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Tenant (``*``: every other) -> route."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Former name -> route."""
    revision: int = 0
    """The newest change's number."""


class RouteTable:
    """The routes; ``default`` exists from the start and always will."""

    def __init__(self, db: Database) -> None:
        self._db = db

    # what there is

    def list(self) -> Routes:
        """Every route by name."""
        with self._db.session(read_only=True) as session:
            return [route_rows.to_record(row) for row in route_rows.all_rows(session)]

    def get(self, name: str) -> Route:
        """Raises UnknownRoute."""
        with self._db.session(read_only=True) as session:
            return route_rows.to_record(route_rows.get_row(session, name))

    def created(self) -> dict[str, float | None]:
        """Route -> when it was made, Unix seconds; None before that was noted."""
        with self._db.session(read_only=True) as session:
            return {row.name: row.created_at for row in route_rows.all_rows(session)}

    def pins(self) -> dict[str, str]:
        """Tenant (``*`` for every other) -> route."""
        with self._db.session(read_only=True) as session:
            return route_rows.pins(session)

    def plan(self) -> RoutePlan:
        """Routes, pins and former names, all of one moment."""
        with self._db.session(read_only=True) as session:
            if self._db.dialect == "postgresql":  # else each query would see a moment of its own
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            revision = route_log.revision(session)
            rows = route_rows.all_rows(session)
            routes = [route_rows.to_record(row) for row in rows]
            routes.sort(key=lambda route: route.name != DEFAULT_ROUTE)
            return RoutePlan(tuple(routes), route_rows.pins(session), route_names.aliases(session), revision)

    def revision(self) -> int:
        """The newest change's number; it rises with every change."""
        with self._db.session(read_only=True) as session:
            return route_log.revision(session)

    def history(self, route: str | None = None, limit: int = 100) -> Changes:
        """The newest changes, newest first; a route's under its former names too."""
        with self._db.session(read_only=True) as session:
            return route_log.history(session, route, limit)

    # changes

    def add(self, route: Route, who: str | None = None) -> Route:
        """Raises DuplicateRoute, BadInput, BadPattern, UnknownDraft, RouteWithoutDraft."""
        with self._db.session() as session:
            lock_routes(session)
            return route_rows.add(session, route, who)

    def change(self, route: Route, who: str | None = None) -> Route:
        """Give the route of that name what this one has. Raises UnknownRoute, and what :meth:`add` raises."""
        with self._db.session() as session:
            lock_routes(session)
            return route_rows.change(session, route, who)

    def remove(self, name: str, who: str | None = None) -> Route:
        """With its pins; what was kept under its name stays until it is purged. Raises UnknownRoute, DefaultRoute."""
        with self._db.session() as session:
            lock_routes(session)
            return route_rows.remove(session, name, who)

    def rename(self, name: str, to: str, who: str | None = None) -> Route:
        """Pins, samples and counters follow, and the old name leads to the route until another takes it.

        Raises UnknownRoute, DefaultRoute, DuplicateRoute, BadInput.
        """
        with self._db.session() as session:
            lock_routes(session)
            return route_names.rename(session, name, to, who)

    def pin(self, tenant: str, route: str, who: str | None = None) -> None:
        """Send a tenant's requests (``*``: everybody else's) to a route, whatever they say. Raises UnknownRoute."""
        with self._db.session() as session:
            lock_routes(session)
            route_rows.pin(session, tenant, route, who)

    def unpin(self, tenant: str, who: str | None = None) -> None:
        """Raises NotFound for a tenant that is not pinned."""
        with self._db.session() as session:
            lock_routes(session)
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

        Returns how many changes that took. Raises what :meth:`add`, :meth:`pin` and ``examples.teach`` raise, with
        nothing changed.
        """
        with self._db.session() as session:
            lock_routes(session)
            before = route_log.revision(session)
            if replace:
                for tenant in route_rows.pins(session).keys() - pins.keys():
                    route_rows.unpin(session, tenant, who)
            for route in routes:
                known = session.get(RouteRow, route.name) is not None
                (route_rows.change if known else route_rows.add)(session, route, who)
            for tenant, name in pins.items():
                route_rows.pin(session, tenant, name, who)
            teach(session, examples, who)
            if replace:
                _remove_others({route.name for route in routes}, session, who)
            session.flush()
            return route_log.count_since(session, before)


def _remove_others(kept: set[str], session: Session, who: str | None) -> None:
    for row in route_rows.all_rows(session):
        if row.name not in kept and row.name != DEFAULT_ROUTE:
            route_rows.remove(session, row.name, who)
