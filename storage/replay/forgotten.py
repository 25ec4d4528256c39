"""What was forgotten stays so: requests that were on their way meanwhile, in a server's memory or on its disk, are
refused when they come. The memory is the trail of admins, which is written before anything is deleted.

Whoever keeps something asks in the transaction that keeps it, and the line of the trail waits for such transactions.
So either the line is seen, or what was kept is seen by the forgetting that follows the line.

Lines are written one after another, so their numbers say what came later. A table of n-grams learned from many requests
and names none: it is born after a line, and is not kept once there is a newer one
(:mod:`storage.versions.forgotten_tables`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import bindparam, or_, select, text
from sqlalchemy.orm import Session

from storage.errors import ForgottenSince
from storage.replay.sample_index import chunks
from storage.sql.tables import AdminChangeRow, table_of

ACTION, REQUEST, TENANT = "forget", "request", "tenant"
"""Of a line of the trail, and what it is about."""
LOCK = 0x6F73645F666F7267
"""PostgreSQL's lock for both sides; SQLite has one writer at a time in any case."""


TRAIL = table_of(AdminChangeRow).c
ABOUT = select(TRAIL.at, TRAIL.subject, TRAIL.facts).where(
    TRAIL.action == ACTION, or_(TRAIL.subject.in_(bindparam("some", expanding=True)), TRAIL.subject.is_(None))
)


class Finished(NamedTuple):
    """A request that comes to be kept."""

    request_id: str
    tenant: str
    at: float
    """When it was finished, Unix seconds."""


class News(NamedTuple):
    """What was forgotten after a line of the trail."""

    line: int
    """The newest line about forgetting; the one that was asked about, if there is none after it."""
    request_ids: frozenset[str]
    """Requests forgotten by their ids."""


def take_turns(session: Session, *, alone: bool = False) -> None:
    """Until the transaction ends: one that forgets (``alone``) has none beside it that keeps."""
    if session.get_bind().dialect.name == "postgresql":
        function = "pg_advisory_xact_lock" if alone else "pg_advisory_xact_lock_shared"
        session.execute(text(f"SELECT {function}(:key)"), {"key": LOCK})


def forgotten(session: Session, requests: Iterable[Finished]) -> set[str]:
    """The ids of those that were forgotten: by their ids, or with their tenant after they were finished."""
    asked = list(requests)
    ids = {each.request_id for each in asked}
    gone, tenants = _lines(session, ids | {each.tenant for each in asked})
    return (ids & gone) | {each.request_id for each in asked if each.at <= tenants.get(each.tenant, float("-inf"))}


def _lines(session: Session, subjects: set[str]) -> tuple[set[str], dict[str, float]]:
    """What the trail says of them: requests, and tenants with the newest time."""
    gone: set[str] = set()
    tenants: dict[str, float] = {}
    for some in chunks(sorted(subjects)):
        for at, subject, facts in session.execute(ABOUT, {"some": some}):
            if facts["what"] == TENANT:
                tenants[str(subject)] = max(at, tenants.get(str(subject), at))
            else:
                gone.update(facts.get("request_ids") or [str(subject)])
    return gone, tenants


def news_after(session: Session, line: int) -> News:
    """What was forgotten after a line; 0 is before all of them."""
    columns = AdminChangeRow.id, AdminChangeRow.subject, AdminChangeRow.facts
    query = select(*columns).where(AdminChangeRow.id > line, AdminChangeRow.action == ACTION)
    gone: set[str] = set()
    for number, subject, facts in session.execute(query.order_by(AdminChangeRow.id)):
        line = number
        if facts["what"] == REQUEST:
            gone.update(facts.get("request_ids") or [str(subject)])
    return News(line, frozenset(gone))


def require_born_after_all(session: Session, what: str, born: int | None) -> int:
    """The line after which it was born; None is now. For the transaction that keeps it. Raises ForgottenSince."""
    take_turns(session)
    newest = news_after(session, born or 0).line
    if born is not None and newest > born:
        raise ForgottenSince(what=what)
    return newest
