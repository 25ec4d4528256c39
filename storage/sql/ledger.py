"""Rows of the version ledger: reading, checking and creating them within a session."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from storage import records
from storage.errors import BadInput, StoreError, UnknownVersion, WeightsDamaged, WrongState
from storage.records import DraftVersion, VersionState
from storage.sql.tables import VersionRow

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def require_name(draft: str) -> None:
    """Raise BadInput for a draft name that cannot be a folder's."""
    if not NAME.fullmatch(draft):
        raise BadInput(reason=f"{draft!r} cannot name a draft: use letters, digits, '.', '_' and '-', 64 at most.")


def get_row(session: Session, version_id: str, *, lock: bool = False) -> VersionRow:
    """Return a version's row, locked if asked. Raises UnknownVersion."""
    row = session.get(VersionRow, version_id, with_for_update=lock)
    if row is None:
        raise UnknownVersion(version=version_id)
    return row


def root_of(session: Session, draft: str) -> VersionRow | None:
    """Return number 0 of a draft; None if it has none."""
    return session.scalar(select(VersionRow).where(VersionRow.draft == draft, VersionRow.number == 0))


def require_same_root(root: VersionRow, digest: str) -> DraftVersion:
    """Return the root if its digest is the given one. Raises StoreError."""
    if root.digest != digest:
        raise StoreError(
            reason=f"The draft {root.draft!r} started from other weights (digest {root.digest[:8]}…, "
            f"given {digest[:8]}…). Serve with those, give these a name of their own (--draft-name), or give another "
            "data directory; for a route alone they become a draft by `osd router add ROUTE --new-draft --from FOLDER`."
        )
    return to_record(root)


def lineage_of(session: Session, row: VersionRow) -> Iterator[VersionRow]:
    """Yield the row, its parent, and so on up to the root."""
    yield row
    while row.parent is not None:
        row = get_row(session, row.parent)
        yield row


def require_state(row: VersionRow, action: str, *allowed: VersionState) -> None:
    """Raise WrongState unless the version is in one of the allowed states."""
    if VersionState(row.state) not in allowed:
        needed = " or ".join(state.value for state in allowed)
        raise WrongState(version=row.id, state=row.state, action=action, needed=f"a version that is {needed}")


def require_weights(version: VersionRow | DraftVersion) -> None:
    """Raise WeightsDamaged for a version whose weights were deleted."""
    if version.deleted_at is not None:
        raise WeightsDamaged(version=version.id, reason="they were deleted; only what is known of them is kept")


def next_row(session: Session, draft: str, digest: str, state: VersionState, facts: Mapping[str, Any]) -> VersionRow:
    """Create a version with the draft's next number, with the draft locked."""
    last = session.scalar(select(func.max(VersionRow.number)).where(VersionRow.draft == draft))
    number = 0 if last is None else last + 1
    version_id = f"{draft}-{number:06d}-{digest[:8]}"
    return VersionRow(
        id=version_id, draft=draft, number=number, digest=digest, state=state.value, created_at=records.now(),
        path=f"{draft}/{version_id}", evidence={}, **facts,
    )  # fmt: skip


def note(row: VersionRow, key: str, reason: str) -> None:
    """Record in the evidence why a version changed its state."""
    row.evidence = {**row.evidence, key: {"reason": reason, "at": records.now()}}


def to_record(row: VersionRow) -> DraftVersion:
    """Convert a row to a record."""
    return DraftVersion(
        id=row.id, draft=row.draft, number=row.number, parent=row.parent, digest=row.digest, kind=row.kind,
        state=VersionState(row.state), created_at=row.created_at, path=row.path, run_id=row.run_id,
        evidence=row.evidence, bytes=row.bytes, served_at=row.served_at, deleted_at=row.deleted_at,
        has_master=bool(row.has_master),
    )  # fmt: skip
