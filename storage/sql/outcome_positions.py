"""Counts of drafted, accepted and rejected tokens by position in the draft, summed over
:mod:`storage.outcomes.outcomes` spans.

Kept by route and draft version only: a row for every worker, controller and tenant would be twelve times as many.
Servers therefore add to the same rows; they do so in one order, so that no deadlock arises.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Insert, delete, literal, select
from sqlalchemy.orm import Session

from storage.records import Outcome
from storage.sql.drivers import insert_for
from storage.sql.outcome_tables import PositionRow
from storage.sql.spans import by_span

KEYS = ("span", "start", "route", "draft_version", "position")
POSITION_COUNTS = ("drafted", "accepted", "refused")


class PositionSums:
    """The counts by position, within a session that the caller commits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._dialect = session.get_bind().dialect.name

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Add the outcomes' counts; an outcome without counts adds nothing."""
        if rows := _rows(outcomes):
            self._session.execute(_upsert(self._dialect), rows)

    def rename(self, route: str, to: str) -> None:
        """Rename a route's sums, adding them to what a removed route of the new name may have left."""
        names = [name for name in (*KEYS, *POSITION_COUNTS) if name != "route"]
        old = select(literal(to), *(getattr(PositionRow, name) for name in names)).where(PositionRow.route == route)
        self._session.execute(_adding(insert_for(self._dialect)(PositionRow).from_select(["route", *names], old)))
        self._session.execute(delete(PositionRow).where(PositionRow.route == route))


def _rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the rows to add, one a key, always in the same order."""
    added = (
        ((outcome.finished_at, outcome.route, outcome.draft_version, position), counts)
        for outcome in outcomes
        for position, counts in enumerate(outcome.positions)
    )
    names = (*KEYS, *POSITION_COUNTS)
    return [dict(zip(names, (*key, *sums), strict=True)) for key, sums in by_span(added)]


@cache
def _upsert(dialect: str) -> Insert:
    return _adding(insert_for(dialect)(PositionRow))


def _adding(statement: Any) -> Insert:
    added = {name: getattr(PositionRow, name) + statement.excluded[name] for name in POSITION_COUNTS}
    result: Insert = statement.on_conflict_do_update(index_elements=KEYS, set_=added)
    return result
