"""The training processes of a store, on any machine: whether each lives, what it does, and what people ask of it.

A trainer writes a row of its own again and again, as servers do (:mod:`storage.access.workers`), and reads there
whether it is to pause or to give up its run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from storage import records
from storage.errors import UnknownTrainer, WrongState
from storage.sql import audit
from storage.sql.database import Database
from storage.sql.drivers import plain
from storage.sql.tables import TrainerRow

FORGET_SECONDS = 3600.0
"""Seconds for which a gone trainer is still listed."""


class TrainerState(str, Enum):
    """What a training process does."""

    IDLE = "idle"  # nothing is due
    TRAINING = "training"  # a run is under way
    PAUSED = "paused"  # people asked it to wait; a run under way waits too
    GONE = "gone"  # no heartbeat in time: killed, or cut off from the database


@dataclass(frozen=True, slots=True)
class Trainer:
    """A training process as it last reported."""

    id: str
    """Host, process id and a nonce; also the holder of its leases."""
    host: str
    pid: int
    started_at: float
    heartbeat_at: float
    gone_at: float
    """Time until which it is presumed alive, Unix seconds of its own clock."""
    doing: Mapping[str, Any] = field(default_factory=dict)
    """The run under way: its draft, since when, step and steps; and why no run begins."""
    paused: bool = False
    cancels: bool = False
    """Whether it was asked to give up the run under way."""

    @property
    def state(self) -> TrainerState:
        """What it does now."""
        if self.gone_at < records.now():
            return TrainerState.GONE
        if self.paused:
            return TrainerState.PAUSED
        return TrainerState.TRAINING if "draft" in self.doing else TrainerState.IDLE


class TrainerRegistry:
    """The registry of training processes."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def beat(self, trainer: Trainer, *, cancelled: bool = False) -> Trainer:
        """Record a heartbeat; return the trainer with what is asked of it. ``cancelled``: it has given its run up."""
        with self._db.session() as session:
            row = session.get(TrainerRow, trainer.id, with_for_update=True)
            if row is None:
                row = TrainerRow(id=trainer.id, paused=False, cancels=False)
                session.add(row)
            row.host, row.pid, row.started_at = trainer.host, trainer.pid, trainer.started_at
            row.heartbeat_at, row.gone_at, row.doing = trainer.heartbeat_at, trainer.gone_at, plain(trainer.doing)
            row.cancels = row.cancels and not cancelled
            session.execute(delete(TrainerRow).where(TrainerRow.gone_at < records.now() - FORGET_SECONDS))
            session.flush()
            return to_record(row)

    def end(self, trainer: str) -> None:
        """Delete the row of a trainer that stops. Doing it twice is fine."""
        with self._db.session() as session:
            session.execute(delete(TrainerRow).where(TrainerRow.id == trainer))

    def list(self) -> list[Trainer]:
        """Return every trainer, gone ones included, oldest first."""
        with self._db.session(read_only=True) as session:
            query = select(TrainerRow).order_by(TrainerRow.started_at, TrainerRow.id)
            return [to_record(row) for row in session.scalars(query)]

    def pause(self, name: str, *, undo: bool = False) -> Trainer:
        """Let a trainer wait, or go on; it hears of it with its next heartbeat. Raises UnknownTrainer."""
        with self._db.session() as session:
            row = self._alive(session, name)
            if row.paused is undo:
                row.paused = not undo
                action = "trainer resume" if undo else "trainer pause"
                audit.note(session, action, row.id, {"paused": not undo}, {"paused": undo})
            return to_record(row)

    def cancel(self, name: str) -> Trainer:
        """Ask a trainer to give up the run under way. Raises UnknownTrainer, WrongState where it trains nothing."""
        with self._db.session() as session:
            row = self._alive(session, name)
            if "draft" not in row.doing:
                raise WrongState(version=row.id, state="idle", action="cancelling", needed="a run under way")
            row.cancels = True
            audit.note(session, "trainer cancel", row.id, {"cancelled": row.doing})
            return to_record(row)

    def _alive(self, session: Session, name: str) -> TrainerRow:
        """Return the row of the living trainer of this name, or whose name begins so. Raises UnknownTrainer."""
        query = select(TrainerRow).where(TrainerRow.gone_at >= records.now()).order_by(TrainerRow.id)
        living = list(session.scalars(query.with_for_update()))
        found = [row for row in living if row.id.startswith(name)]
        if len(found) != 1:
            raise UnknownTrainer(trainer=name, known=", ".join(row.id for row in living) or "none")
        return found[0]


def to_record(row: TrainerRow) -> Trainer:
    """Convert a row to a record."""
    return Trainer(**{name: getattr(row, name) for name in Trainer.__dataclass_fields__})
