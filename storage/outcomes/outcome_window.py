"""Sums of outcomes over a stretch of time, each minute counted once whatever spans cover it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add, itemgetter
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Double, Float, Row, Select, String, cast, func, select, text
from sqlalchemy.orm import Session

from storage.sql.database import Database, Ts
from storage.sql.outcome_tables import CounterRow, PositionRow
from storage.sql.spans import SPANS, WEEK, SpanPart, cover
from storage.sql.tables import VersionRow

Table = type[CounterRow] | type[PositionRow]
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The outcomes that a query covers; a None field does not restrict."""

    since: float | None = None
    """Unix seconds, as ``until`` is; widened to whole minutes."""
    until: float | None = None
    route: str | None = None
    draft: str | None = None
    version: str | None = None

    def conditions(self, table: Table) -> list[ColumnElement[bool]]:
        """Return SQL conditions for everything but the time."""
        wanted: list[ColumnElement[bool]] = []
        if self.route is not None:
            wanted.append(table.route == self.route)
        if self.draft is not None:
            wanted.append(table.draft_version.in_(select(VersionRow.id).where(VersionRow.draft == self.draft)))
        if self.version is not None:
            wanted.append(table.draft_version == self.version)
        return wanted


EVERYTHING = Window()


def grouped(
    session: Session, table: Table, window: Window, columns: Mapping[str, Any], counts: Sequence[str]
) -> dict[Key, Sequence[Any]]:
    """Return the sums of ``counts`` for each group, keyed and sorted by the groups' values in the order of ``columns``.

    ``columns`` maps a name to the table's column; None for minute, hour and day, which are Unix seconds. One statement
    for each piece of time, so that each runs along the primary key; one for all pieces would sort a year's rows.
    """
    finest, split = min((SPANS[name] for name in columns if name in SPANS), default=WEEK), len(columns)
    found: dict[Key, Sequence[Any]] = {}
    hurry(session)
    connection = session.connection()  # a session would look for objects in each of thousands of rows
    for piece in cover(window.since, window.until, finest):
        for row in connection.execute(_sums(table, window, piece, columns, counts, connection.dialect.name)).all():
            key, sums = row[:split], row[split:]
            if sums[0] is None:  # without groups SQL returns one row of nulls
                continue
            if (so_far := found.get(key)) is not None:
                sums = tuple(map(add, so_far, sums))
            found[key] = sums
    return dict(sorted(found.items(), key=itemgetter(0)))


def _sums(
    table: Table, window: Window, piece: SpanPart, columns: Mapping[str, Any], counts: Sequence[str], dialect: str
) -> Any:
    groups = {
        name: column if name not in SPANS else _start(table, SPANS[name], piece) for name, column in columns.items()
    }
    order = sorted(groups, key=lambda name: name not in SPANS)  # time first, as in the primary key
    sums = [_sum(getattr(table, name), dialect) for name in counts]
    query = select(*groups.values(), *sums).where(*_within(table, piece), *window.conditions(table))
    ordered = (_by_bytes(column) if dialect == "postgresql" else column for column in groups.values())
    return query.group_by(*(groups[name] for name in order)).order_by(*ordered)  # sorting again then costs nothing


def _by_bytes(column: Any) -> Any:
    """Return the column in byte order, as Python sorts: PostgreSQL would sort by a language's rules."""
    return column.collate("C") if isinstance(column.type, String) else column


def hurried(db: Database, query: Select[*Ts]) -> Sequence[Row[*Ts]]:
    """Return all rows of a query, in a hurry."""
    with db.session(read_only=True) as session:
        hurry(session)
        return session.execute(query).all()


def hurry(session: Session) -> None:
    """Tune PostgreSQL for this transaction: it would compile each statement for 30 ms, and sort a year's days on the
    disk."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT set_config('jit', 'off', true), set_config('work_mem', '64MB', true)"))


def _sum(column: Any, dialect: str) -> Any:
    """Return an exact sum of whole numbers, up to 2⁵³ on PostgreSQL.

    PostgreSQL sums integers to decimals, which is slow; doubles take half the time.
    """
    if isinstance(column.type, Float) or dialect != "postgresql":
        return func.sum(column)
    return cast(func.sum(cast(column, Double)), BigInteger)


def _start(table: Table, span: int, piece: SpanPart) -> ColumnElement[int]:
    return table.start if piece.span == span else table.start - table.start % span  # type: ignore[return-value]


def _within(table: Table, piece: SpanPart) -> list[ColumnElement[bool]]:
    bounds: list[ColumnElement[bool]] = [table.span == piece.span]
    if piece.start is not None:
        bounds.append(table.start >= piece.start)
    if piece.end is not None:
        bounds.append(table.start < piece.end)
    return bounds
