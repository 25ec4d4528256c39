"""The serving processes of a store, on any machine: whether each lives, and what it drafts with.

A worker writes a row of its own again and again, with the time until which it is presumed alive. One that is killed
stops writing and is *gone* from that time on; nobody has to notice. A worker that was asleep, or whose database was
away, writes again and is back. One that stops in order deletes its row.
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
from storage.sql import audit
from storage.sql.database import Database
from storage.sql.tables import ServingRow, WorkerRow

FORGET_SECONDS = 3600.0
"""Seconds for which a gone worker is still listed."""
HEAD = " head"
"""Suffix of the name under which a worker's acceptance heads are noted."""


class WorkerState(str, Enum):
    """The life cycle of a serving process."""

    SERVING = "serving"  # it takes requests
    DRAINING = "draining"  # it finishes its requests, and stops
    GONE = "gone"  # no heartbeat in time: killed, or cut off from the database


@dataclass(frozen=True, slots=True)
class Worker:
    """A serving process as it last reported."""

    id: str
    """Host and process id; also its name in counters."""
    host: str
    pid: int
    """Its process id; 0 for an engine that is not ours (:mod:`storage.access.engines`), and a front over replicas."""
    url: str
    """URL of its API; processes behind one port have it in common."""
    started_at: float
    heartbeat_at: float
    gone_at: float
    """Time until which it is presumed alive, Unix seconds of its own clock."""
    state: WorkerState = WorkerState.SERVING
    drains: bool = False
    """Whether a drain was requested."""
    running: int = 0
    """Number of requests that it decodes."""
    waiting: int = 0
    rate: float = 0.0
    """Requests a second finished between its newest two heartbeats."""
    drafts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Draft -> {"version", "digest"} that it drafts with."""
    trouble: str | None = None
    """Reason why it does not draft with the intended version."""

    @property
    def alive(self) -> bool:
        """Whether it has not gone."""
        return self.state is WorkerState.SERVING and not self.drains

    def takes(self, draft: str) -> bool:
        """Return whether it may draft with a draft: an engine that is not ours has one, and serves no other; a front
        has none."""
        return self.pid != 0 or draft in self.drafts


class WorkerRegistry:
    """The registry of serving processes."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def beat(self, worker: Worker, replaces: str | None = None) -> bool:
        """Record a heartbeat; return whether a drain was requested. ``replaces`` is one that ended and left its row."""
        with self._db.session() as session:
            row = session.get(WorkerRow, worker.id, with_for_update=True)
            drains = row is not None and row.drains and row.started_at == worker.started_at
            session.merge(WorkerRow(**{**asdict(worker), "state": worker.state.value, "drains": drains}))
            _forget(session, [*_long_gone(session), *([replaces] if replaces else [])])
            return drains

    def end(self, worker: str) -> None:
        """Delete the row of a worker that stops or was seen to have ended. Doing it twice is fine."""
        with self._db.session() as session:
            _forget(session, [worker])

    def list(self) -> list[Worker]:
        """Return every worker, gone ones included, oldest first."""
        with self._db.session(read_only=True) as session:
            return listed(session)

    def ask_drain(self, worker: str, *, undo: bool = False, who: str | None = None) -> Worker:
        """Request a drain, or withdraw it; the worker hears of it with its next heartbeat. Raises UnknownWorker."""
        with self._db.session() as session:
            row = session.get(WorkerRow, worker, with_for_update=True)
            if row is None or to_record(row).state is WorkerState.GONE:
                living = [each.id for each in listed(session) if each.state is not WorkerState.GONE]
                raise UnknownWorker(worker=worker, known=", ".join(living) or "none")
            if row.drains is undo:
                row.drains = not undo
                audit.note(session, "servers drain", worker, {"drains": not undo}, {"drains": undo}, who=who)
            return to_record(row)


def listed(session: Session) -> list[Worker]:
    """Return every worker, oldest first."""
    return [to_record(row) for row in session.scalars(select(WorkerRow).order_by(WorkerRow.started_at, WorkerRow.id))]


def gone(session: Session) -> set[str]:
    """Return the names of gone workers, as serving rows have them."""
    names = set(session.scalars(select(WorkerRow.id).where(WorkerRow.gone_at < records.now())))
    return names | {name + HEAD for name in names}


def to_record(row: WorkerRow) -> Worker:
    """Convert a row to a record, in state GONE where its time has run out."""
    values = {name: getattr(row, name) for name in Worker.__dataclass_fields__}
    state = WorkerState.GONE if row.gone_at < records.now() else WorkerState(row.state)
    return Worker(**{**values, "state": state})


def _long_gone(session: Session) -> Sequence[str]:
    return session.scalars(select(WorkerRow.id).where(WorkerRow.gone_at < records.now() - FORGET_SECONDS)).all()


def _forget(session: Session, names: Sequence[str]) -> None:
    """Delete the workers' rows and their serving rows."""
    if names:
        serving = or_(ServingRow.worker.in_(names), ServingRow.worker.in_([name + HEAD for name in names]))
        session.execute(delete(ServingRow).where(serving))
        session.execute(delete(WorkerRow).where(WorkerRow.id.in_(names)))
