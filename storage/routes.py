"""Which draft serves which kind of traffic."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage.database import Database
from storage.drivers import insert_for, plain
from storage.errors import UnknownDraft, UnknownRoute
from storage.leases import known_drafts
from storage.records import Route
from storage.tables import DraftRow, RouteRow

Routes = list[Route]


class RouteTable:
    """The routes; ``default`` exists from the start."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def list(self) -> Routes:
        """Every route by name."""
        with self._db.session(read_only=True) as session:
            return [_to_record(row) for row in _rows(session)]

    def get(self, name: str) -> Route:
        """Raises UnknownRoute."""
        with self._db.session(read_only=True) as session:
            if row := session.get(RouteRow, name):
                return _to_record(row)
            known = ", ".join(row.name for row in _rows(session))
        raise UnknownRoute(route=name, known=known)

    def add(self, route: Route) -> Route:
        """Add a route, or change the one of that name. Raises UnknownDraft."""
        with self._db.session() as session:
            if session.get(DraftRow, route.draft) is None:
                raise UnknownDraft(draft=route.draft, known=known_drafts(session))
            row = {"draft": route.draft, "matches": plain(route.matches)}
            new = insert_for(self._db.dialect)(RouteRow).values(name=route.name, **row)
            session.execute(new.on_conflict_do_update(index_elements=["name"], set_=row))
        return route


def _rows(session: Session) -> list[RouteRow]:
    return list(session.scalars(select(RouteRow).order_by(RouteRow.name)))


def _to_record(row: RouteRow) -> Route:
    return Route(row.name, row.draft, row.matches)
