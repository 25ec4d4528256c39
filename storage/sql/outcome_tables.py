"""Tables of outcomes: sums by minute, hour, day and week, and the newest requests one by one.

Counts by position in the draft are kept by route and draft version only: a row for every worker, controller and tenant
would be twelve times as many. Servers therefore add to the same rows; they do so in one order, so that no deadlock
arises.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Index, Insert, delete, literal, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from storage.records import Outcome
from storage.sql.drivers import insert_for
from storage.sql.spans import by_span
from storage.sql.tables import Base


class Counters:
    """The summed counts of outcomes; the names are those of :class:`storage.records.Outcome`."""

    requests: Mapped[int]
    rounds: Mapped[int]
    drafted: Mapped[int]
    accepted: Mapped[int]
    rejections: Mapped[int]
    emitted: Mapped[int]
    prompt_tokens: Mapped[int]
    draft_ms: Mapped[float]
    verify_ms: Mapped[float]


COUNTS = tuple(Counters.__annotations__)


class CounterRow(Counters, Base):
    """Outcomes summed over ``span`` seconds (a minute, an hour, a day, a week) from ``start`` on."""

    __tablename__ = "outcome_counters"
    __table_args__ = (Index(None, "draft_version", "span", "start"),)
    span: Mapped[int] = mapped_column(primary_key=True)
    start: Mapped[int] = mapped_column(primary_key=True)
    route: Mapped[str] = mapped_column(primary_key=True)
    draft_version: Mapped[str] = mapped_column(primary_key=True)
    controller: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    worker: Mapped[str] = mapped_column(primary_key=True)


class PositionRow(Base):
    """Counts by position in the draft, summed as in :class:`CounterRow`; see Outcome.positions. Servers share these
    rows."""

    __tablename__ = "position_counters"
    span: Mapped[int] = mapped_column(primary_key=True)
    start: Mapped[int] = mapped_column(primary_key=True)
    route: Mapped[str] = mapped_column(primary_key=True)
    draft_version: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    drafted: Mapped[int]
    accepted: Mapped[int]
    refused: Mapped[int]


class OutcomeBatchRow(Base):
    """A batch of outcomes that was added, kept until its sender knows so, lest it be added a second time."""

    __tablename__ = "outcome_batches"
    id: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[float]


class OutcomeRow(Counters, Base):
    """One of the newest outcomes; older ones are deleted as new ones come."""

    __tablename__ = "outcome_log"
    __table_args__ = (Index(None, "draft_version", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    request_id: Mapped[str] = mapped_column(index=True)
    route: Mapped[str]
    tenant: Mapped[str] = mapped_column(index=True)
    draft_version: Mapped[str]
    controller: Mapped[str]
    worker: Mapped[str]
    finished_at: Mapped[float]


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
