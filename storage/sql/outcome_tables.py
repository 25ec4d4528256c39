"""Tables of outcomes: sums by minute, hour, day and week, and the newest requests one by one."""

from __future__ import annotations

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

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
