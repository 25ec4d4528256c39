"""The serving processes of a store, on whatever machine: each tells that it lives, and what it drafts with.

A worker writes a row of its own again and again, with the time until which it is to be believed. One that is killed
stops writing and is *gone* from that time on; nobody has to notice. A worker that was asleep, or whose database was
away, writes again and is back. One that stops in order takes its row away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from storage import records
from storage.errors import UnknownWorker
from storage.sql import admin_log
from storage.sql.database import Database
from storage.sql.tables import ServingRow, WorkerRow

FORGET_SECONDS = 3600.0
"""How long one that is gone is still shown."""
HEAD = " head"
"""What the name ends with under which a worker's acceptance heads are noted."""


class WorkerState(str, Enum):
    """The life of a serving process."""

    SERVING = "serving"  # it takes requests
    DRAINING = "draining"  # it finishes what it has, and stops
    GONE = "gone"  # it was not heard of in time; killed, or cut off from the database


@dataclass(frozen=True, slots=True)
class Worker:
    """A serving process as it last said."""

    id: str
    """Host and process id: its name in counters, too."""
    host: str
    pid: int
    url: str
    """Where it serves the API; processes behind one port have it in common."""
    started_at: float
    heartbeat_at: float
    gone_at: float
    """Until then it is believed to live; Unix seconds of its own clock."""
    state: WorkerState = WorkerState.SERVING
    drains: bool = False
    """Whether somebody wants it to drain."""
    running: int = 0
    """Requests that it decodes."""
    waiting: int = 0
    rate: float = 0.0
    """Requests a second that it finished between its newest two heartbeats."""
    drafts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Draft -> {"version", "digest"} that it drafts with."""
    trouble: str | None = None
    """Why it does not draft with what it should."""

    @property
    def alive(self) -> bool:
        """Whether it can be given something to do."""
        return self.state is WorkerState.SERVING and not self.drains


class WorkerRegistry:
    """Serving processes, by name."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def beat(self, worker: Worker, replaces: str | None = None) -> bool:
        """Say that it lives; whether somebody wants it to drain. ``replaces`` is one that ended and left its row."""
        with self._db.session() as session:
            row = session.get(WorkerRow, worker.id, with_for_update=True)
            drains = row is not None and row.drains and row.started_at == worker.started_at
            session.merge(WorkerRow(**{**asdict(worker), "state": worker.state.value, "drains": drains}))
            _forget(session, [*_long_gone(session), *([replaces] if replaces else [])])
            return drains

    def end(self, worker: str) -> None:
        """It stops, or was seen to have ended: its row goes. Doing it twice is fine."""
        with self._db.session() as session:
            _forget(session, [worker])

    def list(self) -> list[Worker]:
        """Every one, those that are gone included, oldest first."""
        with self._db.session(read_only=True) as session:
            return listed(session)

    def ask_drain(self, worker: str, *, undo: bool = False, who: str | None = None) -> Worker:
        """Want one to drain, or no longer; it hears of it with its next heartbeat. Raises UnknownWorker."""
        with self._db.session() as session:
            row = session.get(WorkerRow, worker, with_for_update=True)
            if row is None or to_record(row).state is WorkerState.GONE:
                living = [each.id for each in listed(session) if each.state is not WorkerState.GONE]
                raise UnknownWorker(worker=worker, known=", ".join(living) or "none")
            if row.drains is undo:
                row.drains = not undo
                admin_log.note(session, who, "drain", worker, {"undone": undo})
            return to_record(row)


def listed(session: Session) -> list[Worker]:
    """Every one, oldest first."""
    return [to_record(row) for row in session.scalars(select(WorkerRow).order_by(WorkerRow.started_at, WorkerRow.id))]


def gone(session: Session) -> set[str]:
    """Names of those that are, as serving rows have them."""
    names = set(session.scalars(select(WorkerRow.id).where(WorkerRow.gone_at < records.now())))
    return names | {name + HEAD for name in names}


def to_record(row: WorkerRow) -> Worker:
    """The row as a record: gone where its time has run out."""
    values = {name: getattr(row, name) for name in Worker.__dataclass_fields__}
    state = WorkerState.GONE if row.gone_at < records.now() else WorkerState(row.state)
    return Worker(**{**values, "state": state})


def _long_gone(session: Session) -> Sequence[str]:
    return session.scalars(select(WorkerRow.id).where(WorkerRow.gone_at < records.now() - FORGET_SECONDS)).all()


def _forget(session: Session, names: Sequence[str]) -> None:
    """Their rows, and what they said that they serve."""
    if names:
        serving = or_(ServingRow.worker.in_(names), ServingRow.worker.in_([name + HEAD for name in names]))
        session.execute(delete(ServingRow).where(serving))
        session.execute(delete(WorkerRow).where(WorkerRow.id.in_(names)))
