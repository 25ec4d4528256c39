"""Names of versions: ``current`` and ``previous`` of every draft, and names of one's own.

A name is written ``DRAFT:NAME``; without a draft it is one of the default draft's. Retention keeps what has a name of
one's own.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage.errors import BadInput
from storage.records import DEFAULT_DRAFT
from storage.sql.ledger import NAME
from storage.sql.tables import DraftRow, VersionAliasRow

CURRENT, PREVIOUS = "current", "previous"
"""Names that every draft has: what serves, and what was current before it."""


def resolve(session: Session, name: str) -> str | None:
    """Return the id of the version that a name stands for; None where there is no such name."""
    draft, _, alias = name.rpartition(":")
    draft = draft or DEFAULT_DRAFT
    if alias in (CURRENT, PREVIOUS):
        row = session.get(DraftRow, draft)
        return None if row is None else row.current_version if alias == CURRENT else row.previous_version
    found = session.get(VersionAliasRow, (draft, alias))
    return None if found is None else found.version


def require_alias(name: str) -> None:
    """Raise BadInput for what cannot be a name of one's own."""
    if name in (CURRENT, PREVIOUS):
        raise BadInput(reason=f"{name!r} is a name that every draft has; choose another.")
    if not NAME.fullmatch(name):
        raise BadInput(reason=f"{name!r} cannot name a version: use letters, digits, '.', '_' and '-', 64 at most.")


def aliases(session: Session) -> dict[str, list[str]]:
    """Return version -> its names of one's own."""
    found: dict[str, list[str]] = {}
    for row in session.scalars(select(VersionAliasRow).order_by(VersionAliasRow.draft, VersionAliasRow.name)):
        found.setdefault(row.version, []).append(row.name)
    return found
