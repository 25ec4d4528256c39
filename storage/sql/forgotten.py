"""Refusal of forgotten requests that arrive late from a server's memory or disk.

Requests are looked up in the audit trail, which is written before anything is deleted.

Every transaction that stores requests looks there, and writing the line waits for such transactions. So either the line
is seen, or the forgetting that follows it finds what was stored.

Lines are written one after another, so their ids give their order. A table of n-grams learns from many requests
and names none: it is born after a line, and is refused once there is a newer one
(:func:`storage.forget.drop_tables`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import bindparam, or_, select, text
from sqlalchemy.orm import Session

from storage.errors import ForgottenSince
from storage.sql.audit import AuditRow
from storage.sql.database import chunks
from storage.sql.tables import table_of

ACTION, REQUEST, TENANT = "replay forget", "request", "tenant"
"""The action of a line of the audit trail, and its kinds of subject."""
TABLE_KIND = "ngram"
"""The kind of versions that are tables of n-grams."""
BORN, DROPPED = "born_after", "forgotten"
"""Keys of such a version's evidence: the line it was born after, and why its files are gone."""
LOCK = 0x6F73645F666F7267
"""PostgreSQL's advisory lock for both sides; SQLite has just one writer anyway."""


TRAIL = table_of(AuditRow).c
ABOUT = select(TRAIL.at, TRAIL.subject, TRAIL.after).where(
    TRAIL.action == ACTION, or_(TRAIL.subject.in_(bindparam("some", expanding=True)), TRAIL.subject.is_(None))
)


class Finished(NamedTuple):
    """A finished request that is about to be stored."""

    request_id: str
    tenant: str
    at: float
    """Time at which it finished, Unix seconds."""


class ForgottenSinceLine(NamedTuple):
    """The requests forgotten after a line of the audit trail, and the newest such line."""

    line: int
    """Id of the newest line about forgetting; the line asked about if none follows it."""
    request_ids: frozenset[str]
    """Requests forgotten by their ids."""


def take_turns(session: Session, *, alone: bool = False) -> None:
    """Take the lock until the transaction ends: shared by those that store, exclusive (``alone``) for one that
    forgets."""
    if session.get_bind().dialect.name == "postgresql":
        function = "pg_advisory_xact_lock" if alone else "pg_advisory_xact_lock_shared"
        session.execute(text(f"SELECT {function}(:key)"), {"key": LOCK})


def forgotten(session: Session, requests: Iterable[Finished]) -> set[str]:
    """Return the ids of requests forgotten by id, or with their tenant after they had finished."""
    asked = list(requests)
    ids = {each.request_id for each in asked}
    gone, tenants = _lines(session, ids | {each.tenant for each in asked})
    return (ids & gone) | {each.request_id for each in asked if each.at <= tenants.get(each.tenant, float("-inf"))}


def _lines(session: Session, subjects: set[str]) -> tuple[set[str], dict[str, float]]:
    """Return the trail's entries on these subjects: request ids, and tenants with the newest time each was
    forgotten."""
    gone: set[str] = set()
    tenants: dict[str, float] = {}
    for some in chunks(sorted(subjects)):
        for at, subject, facts in session.execute(ABOUT, {"some": some}):
            if facts["what"] == TENANT:
                tenants[str(subject)] = max(at, tenants.get(str(subject), at))
            else:
                gone.update(facts.get("request_ids") or [str(subject)])
    return gone, tenants


def news_after(session: Session, line: int) -> ForgottenSinceLine:
    """Return what was forgotten after a line of the audit trail; 0 comes before all of them."""
    columns = AuditRow.id, AuditRow.subject, AuditRow.after
    query = select(*columns).where(AuditRow.id > line, AuditRow.action == ACTION)
    gone: set[str] = set()
    for number, subject, facts in session.execute(query.order_by(AuditRow.id)):
        line = number
        if facts["what"] == REQUEST:
            gone.update(facts.get("request_ids") or [str(subject)])
    return ForgottenSinceLine(line, frozenset(gone))


def born_after(evidence: Mapping[str, Any]) -> int:
    """Return the newest line about forgetting when a table began to learn; 0 where none had been written."""
    return int(evidence.get(BORN, 0))


def require_born_after_all(session: Session, what: str, born: int | None) -> int:
    """Return the line after which a table was born (None means now), within the transaction that stores it.

    Raises ForgottenSince when something was forgotten after that line.
    """
    take_turns(session)
    newest = news_after(session, born or 0).line
    if born is not None and newest > born:
        raise ForgottenSince(what=what)
    return newest
