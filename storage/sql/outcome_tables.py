"""Tables of outcomes: sums by minute, hour, day and week, and the newest requests one by one.

Counts by position in the draft are kept by route and draft version only: a row for every worker, controller and tenant
would be twelve times as many. Servers therefore add to the same rows; they do so in one order, so that no deadlock
arises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

from sqlalchemy import Index, Insert, delete, literal, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from storage.records import Outcome
from storage.sql.drivers import insert_for
from storage.sql.spans import by_span
from storage.sql.tables import Base, table_of


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
OUTCOME_KEYS = ("route", "draft_version", "controller", "tenant")
"""What outcomes are summed by, besides their time and server."""


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


POSITION_COUNTS = ("drafted", "accepted", "refused")
SUMMED: dict[Any, tuple[str, ...]] = {CounterRow: COUNTS, PositionRow: POSITION_COUNTS}
"""The tables of sums, and the columns that are summed; all others are the key."""


def add_counts(session: Session, outcomes: Sequence[Outcome], server: str) -> None:
    """Add outcomes to the sums, one row a key, always in the same order so that two writers cannot deadlock."""
    keys = attrgetter(*OUTCOME_KEYS)
    added = (((outcome.finished_at, *keys(outcome), server), attrgetter(*COUNTS)(outcome)) for outcome in outcomes)
    _add(session, CounterRow, ("span", "start", *OUTCOME_KEYS, "worker"), added)
    places = (
        ((outcome.finished_at, outcome.route, outcome.draft_version, position), counts)
        for outcome in outcomes
        for position, counts in enumerate(outcome.positions)
    )
    _add(session, PositionRow, ("span", "start", "route", "draft_version", "position"), places)


def rename_route(session: Session, name: str, to: str) -> None:
    """Rename a route's sums, adding them to what a removed route of the new name may have left."""
    for row in SUMMED:
        columns = [column.name for column in table_of(row).columns if column.name != "route"]
        old = select(literal(to), *(getattr(row, column) for column in columns)).where(row.route == name)
        new = insert_for(session.get_bind().dialect.name)(row).from_select(["route", *columns], old)
        session.execute(_adding(new, row))
        session.execute(delete(row).where(row.route == name))


def _add(
    session: Session, row: Any, keys: Sequence[str], added: Iterable[tuple[tuple[Any, ...], Sequence[float]]]
) -> None:
    names = (*keys, *SUMMED[row])
    if rows := [dict(zip(names, (*key, *sums), strict=True)) for key, sums in by_span(added)]:
        session.execute(_upsert(session.get_bind().dialect.name, row), rows)


@cache
def _upsert(dialect: str, row: Any) -> Insert:
    return _adding(insert_for(dialect)(row), row)


def _adding(statement: Any, row: Any) -> Insert:
    added = {name: getattr(row, name) + statement.excluded[name] for name in SUMMED[row]}
    key = [column.name for column in table_of(row).primary_key]
    result: Insert = statement.on_conflict_do_update(index_elements=key, set_=added)
    return result
