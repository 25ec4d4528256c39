"""The audit trail: who changed what, when, from where, from what to what.

Every command and every HTTP route that changes something leaves a line, named as the command is (``drafts rollback``),
in the transaction that makes the change where there is one. Lines are never changed but for results that come later,
and never deleted; requests that arrive late are refused by them (:mod:`storage.sql.forgotten`).
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from storage import records
from storage.sql.database import Repository
from storage.sql.drivers import plain
from storage.sql.tables import Base, Facts, record_of


class AuditRow(Base):
    """A line of the audit trail."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[float]
    who: Mapped[str]
    origin: Mapped[str]
    action: Mapped[str] = mapped_column(index=True)
    subject: Mapped[str | None] = mapped_column(index=True)
    before: Mapped[Facts]
    after: Mapped[Facts]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change that was made."""

    id: int
    at: float
    """Unix seconds."""
    who: str
    """Login and host, or the id of an API key."""
    origin: str
    """``cli``, ``http`` with the caller's address, or the part of osd that acted by itself."""
    action: str
    """The command's name; the HTTP route of the same effect has the same."""
    subject: str | None
    """The request, tenant, file, key, version, draft, route or process that it concerned; None for many."""
    before: Mapping[str, Any]
    """What was there; empty for something new."""
    after: Mapping[str, Any]
    """What is there now, or the change's results: counts and names, never a prompt."""


_actor: ContextVar[tuple[str | None, str] | None] = ContextVar("osd_actor", default=None)
_process = "osd"
"""Where what no caller asked for is done: the part of osd that this process is."""


@contextmanager
def acting(origin: str, who: str | None = None) -> Iterator[None]:
    """Name who acts within the context, and from where; without ``who`` it is the process's user."""
    token = _actor.set((who, origin))
    try:
        yield
    finally:
        _actor.reset(token)


def act(origin: str) -> None:
    """Name the part of osd that this process is, all threads included."""
    global _process
    _process = origin


def login() -> str:
    """Return the name and host of this process's user."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def note(
    session: Session,
    action: str,
    subject: str | None,
    after: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    *,
    who: str | None = None,
) -> int:
    """Record a change in the transaction that makes it, or right after, and return its id in the trail."""
    actor, origin = _actor.get() or (None, _process)
    row = AuditRow(
        at=records.now(), who=who or actor or login(), origin=origin, action=action, subject=subject,
        before=plain(before or {}), after=plain(after),
    )  # fmt: skip
    session.add(row)
    session.flush()
    return row.id


def add_results(session: Session, number: int, facts: Mapping[str, Any]) -> None:
    """Add the results of a change that was recorded before it was made."""
    row = session.get_one(AuditRow, number)
    row.after = {**row.after, **plain(facts)}


def history(
    session: Session,
    subject: str | Sequence[str] | None = None,
    limit: int = 50,
    *,
    action: str | None = None,
    since: float | None = None,
) -> list[AuditEntry]:
    """Return the newest lines, newest first: about one of some subjects, of one command or group of commands, of some
    time."""
    query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
    if subject is not None:
        query = query.where(AuditRow.subject.in_([subject] if isinstance(subject, str) else list(subject)))
    if since is not None:
        query = query.where(AuditRow.at >= since)
    if action is not None:
        query = query.where(or_(AuditRow.action == action, AuditRow.action.startswith(f"{action} ", autoescape=True)))
    return [record_of(AuditEntry, row) for row in session.scalars(query)]


class AuditTrail(Repository):
    """The trail, for what is not a transaction of the store's own."""

    def note(
        self, action: str, subject: str | None, after: Mapping[str, Any], before: Mapping[str, Any] | None = None
    ) -> None:
        """Record a change right after it was made."""
        with self._db.session() as session:
            note(session, action, subject, after, before)

    def history(
        self, subject: str | None = None, limit: int = 50, *, action: str | None = None, since: float | None = None
    ) -> list[AuditEntry]:
        """Return the newest lines, newest first, see :func:`history`."""
        return self._db.read(history, subject, limit, action=action, since=since)
