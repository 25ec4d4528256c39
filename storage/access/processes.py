"""The processes of a store, on any machine: which servers and trainers live, what each does, what is asked of it.

A process writes a row of its own again and again, with the time until which it is presumed alive. One that is killed
stops writing and is *gone* from that time on; nobody has to notice. A process that was asleep, or whose database was
away, writes again and is back. One that stops in order deletes its row. People's wishes (to drain, to pause, to give a
run up) stand in the row too, and the process hears of them with its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session, object_session

from storage import records
from storage.errors import UnknownServer, UnknownTrainer, WrongState
from storage.sql import audit
from storage.sql.database import Repository, ahead, clock, has_ended
from storage.sql.drivers import plain
from storage.sql.tables import ServerRow, ServingRow, TrainerRow, record_of

FORGET_SECONDS = 3600.0
"""Seconds for which a gone process is still listed."""
HEAD = " head"
"""Suffix of the name under which a server's acceptance heads are noted."""


class ServerState(str, Enum):
    """The life cycle of a serving process."""

    SERVING = "serving"  # it takes requests
    DRAINING = "draining"  # it finishes its requests, and stops
    GONE = "gone"  # no heartbeat in time: killed, or cut off from the database


class TrainerState(str, Enum):
    """What a training process does."""

    IDLE = "idle"  # nothing is due
    TRAINING = "training"  # a run is under way
    PAUSED = "paused"  # people asked it to wait; a run under way waits too
    GONE = "gone"  # no heartbeat in time: killed, or cut off from the database


@dataclass(frozen=True, slots=True)
class ServingProcess:
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
    """Time until which it is presumed alive."""
    state: ServerState = ServerState.SERVING
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
        return self.state is ServerState.SERVING and not self.drains

    def takes(self, draft: str) -> bool:
        """Return whether it may draft with a draft: an engine that is not ours has one, and serves no other; a front
        has none."""
        return self.pid != 0 or draft in self.drafts


@dataclass(frozen=True, slots=True)
class Trainer:
    """A training process as it last reported."""

    id: str
    """The holder of its leases, by :func:`storage.sql.holders.holder_name`."""
    host: str
    pid: int
    started_at: float
    heartbeat_at: float
    gone_at: float
    """Time until which it is presumed alive."""
    doing: Mapping[str, Any] = field(default_factory=dict)
    """The run under way: its draft, since when, step, steps and loss; and why no run begins."""
    paused: bool = False
    cancels: bool = False
    """Whether it was asked to give up the run under way."""

    @property
    def state(self) -> TrainerState:
        """What it does now."""
        if has_ended(self.heartbeat_at, self.gone_at, records.now()):
            return TrainerState.GONE
        if self.paused:
            return TrainerState.PAUSED
        return TrainerState.TRAINING if "draft" in self.doing else TrainerState.IDLE


P = TypeVar("P", ServingProcess, Trainer)


class ProcessRegistry(Repository, Generic[P]):
    """The processes of one kind: what their rows are, and how they live and end."""

    row: ClassVar[Any]

    def list(self) -> list[P]:
        """Return every process, gone ones included, oldest first."""
        with self._db.session(read_only=True) as session:
            rows = session.scalars(select(self.row).order_by(self.row.started_at, self.row.id))
            return [self.to_record(row) for row in rows]

    def end(self, name: str) -> None:
        """Delete the row of a process that stops or was seen to have ended. Doing it twice is fine."""
        with self._db.session() as session:
            self._forget(session, [name])

    def to_record(self, row: Any) -> P:
        """Return a row as a record."""
        raise NotImplementedError

    def _write(self, session: Session, process: P, asked: Mapping[str, Any]) -> Any:
        """Write a process's row, with what is ``asked`` of it, and forget those that have long gone."""
        row = session.merge(self.row(**plain({**asdict(process), **asked, **stamps(process, session, 1)})))
        at = clock(session)
        long_gone = (self.row.gone_at < at - FORGET_SECONDS) | (self.row.heartbeat_at > at + FORGET_SECONDS)
        self._forget(session, session.scalars(select(self.row.id).where(long_gone)).all())
        session.flush()
        return row

    def _forget(self, session: Session, names: Sequence[str]) -> None:
        if names:
            session.execute(delete(self.row).where(self.row.id.in_(names)))


class ServerRegistry(ProcessRegistry[ServingProcess]):
    """The serving processes."""

    row = ServerRow

    def beat(self, server: ServingProcess, replaces: str | None = None) -> bool:
        """Record a heartbeat; return whether a drain was requested. ``replaces`` is one that ended and left its row."""
        with self._db.session() as session:
            row = session.get(ServerRow, server.id, with_for_update=True)
            drains = row is not None and row.drains and row.started_at == server.started_at
            self._write(session, server, {"state": server.state.value, "drains": drains})
            self._forget(session, [replaces] if replaces else [])
            return drains

    def ask_drain(self, name: str, *, undo: bool = False, who: str | None = None) -> ServingProcess:
        """Request a drain, or withdraw it. Raises UnknownServer."""
        with self._db.session() as session:
            row = session.get(ServerRow, name, with_for_update=True)
            if row is None or self.to_record(row).state is ServerState.GONE:
                living = [each.id for each in servers(session) if each.state is not ServerState.GONE]
                raise UnknownServer(server=name, known=", ".join(living) or "none")
            if row.drains is undo:
                row.drains = not undo
                audit.note(session, "servers drain", name, {"drains": not undo}, {"drains": undo}, who=who)
            return self.to_record(row)

    def to_record(self, row: ServerRow) -> ServingProcess:
        """Return a row as a record, in state GONE where its time has run out."""
        return _serving_process(row)

    def _forget(self, session: Session, names: Sequence[str]) -> None:
        """Delete the servers' rows, and what they were noted to draft with."""
        if names:
            noted = or_(ServingRow.worker.in_(names), ServingRow.worker.in_([name + HEAD for name in names]))
            session.execute(delete(ServingRow).where(noted))
            super()._forget(session, names)


class TrainerRegistry(ProcessRegistry[Trainer]):
    """The training processes."""

    row = TrainerRow

    def beat(self, trainer: Trainer, *, cancelled: bool = False) -> Trainer:
        """Record a heartbeat; return the trainer with what is asked of it. ``cancelled``: it has given its run up."""
        with self._db.session() as session:
            row = session.get(TrainerRow, trainer.id, with_for_update=True)
            paused, cancels = (row.paused, row.cancels and not cancelled) if row else (False, False)
            return self.to_record(self._write(session, trainer, {"paused": paused, "cancels": cancels}))

    def pause(self, name: str, *, undo: bool = False) -> Trainer:
        """Let a trainer wait, or go on. Raises UnknownTrainer."""
        with self._db.session() as session:
            row = self._living(session, name)
            if row.paused is undo:
                row.paused = not undo
                action = "trainer resume" if undo else "trainer pause"
                audit.note(session, action, row.id, {"paused": not undo}, {"paused": undo})
            return self.to_record(row)

    def cancel(self, name: str) -> Trainer:
        """Ask a trainer to give up the run under way. Raises UnknownTrainer, WrongState where it trains nothing."""
        with self._db.session() as session:
            row = self._living(session, name)
            if "draft" not in row.doing:
                raise WrongState(version=row.id, state="idle", action="cancelling", needed="a run under way")
            row.cancels = True
            audit.note(session, "trainer cancel", row.id, {"cancelled": row.doing})
            return self.to_record(row)

    def to_record(self, row: TrainerRow) -> Trainer:
        """Return a row as a record."""
        return record_of(Trainer, row, **stamps(row, object_session(row), -1))

    def _living(self, session: Session, name: str) -> TrainerRow:
        """Return the row of the living trainer of this name, or whose name begins so. Raises UnknownTrainer."""
        query = (
            select(TrainerRow)
            .where(~has_ended(TrainerRow.heartbeat_at, TrainerRow.gone_at, clock(session)))
            .order_by(TrainerRow.id)
        )
        living = list(session.scalars(query.with_for_update()))
        found = [row for row in living if row.id.startswith(name)]
        if len(found) != 1:
            raise UnknownTrainer(trainer=name, known=", ".join(row.id for row in living) or "none")
        return found[0]


def servers(session: Session) -> list[ServingProcess]:
    """Return every serving process, oldest first."""
    rows = session.scalars(select(ServerRow).order_by(ServerRow.started_at, ServerRow.id))
    return [_serving_process(row) for row in rows]


def gone_servers(session: Session) -> set[str]:
    """Return the names of servers that are gone, as serving rows have them."""
    gone = has_ended(ServerRow.heartbeat_at, ServerRow.gone_at, clock(session))
    names = set(session.scalars(select(ServerRow.id).where(gone)))
    return names | {name + HEAD for name in names}


def _serving_process(row: ServerRow) -> ServingProcess:
    facts = stamps(row, object_session(row), -1)
    gone = has_ended(facts["heartbeat_at"], facts["gone_at"], records.now())
    return record_of(ServingProcess, row, state=ServerState.GONE if gone else ServerState(row.state), **facts)


def stamps(of: Any, session: Session | None, sign: int) -> dict[str, float]:
    """Return when a process was heard of, and until when it is presumed alive: by the database's clock for 1, by this
    machine's for −1."""
    assert session is not None
    shift = sign * ahead(session)
    return {"heartbeat_at": of.heartbeat_at + shift, "gone_at": of.gone_at + shift}
