"""Which version is current and which are served: the changes of state after a version is READY.

Each function works within the caller's transaction and locks the draft first.
"""

from __future__ import annotations

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from storage import records
from storage.announce import announce
from storage.leases import lock_draft
from storage.ledger import get_row, note
from storage.records import VersionState
from storage.tables import DraftRow, ServingRow, VersionRow

SOUND = (VersionState.READY, VersionState.SERVING, VersionState.RETIRED)
"""States of versions that a draft may go back to by itself."""


def mark_serving(session: Session, version_id: str, worker: str) -> VersionRow:
    """A server has loaded a version: it is SERVING, and those that it replaces are RETIRED.

    Only the current version becomes SERVING: a server that lags behind is noted and changes no state.
    """
    row, draft = _locked(session, version_id)
    session.merge(ServingRow(worker=worker, draft=row.draft, version=row.id, since=records.now()))
    if row.state == VersionState.READY.value and draft.current_version == row.id:
        row.state = VersionState.SERVING.value
        _retire_others(session, row)
    return row


def _retire_others(session: Session, row: VersionRow) -> None:
    """Served versions, and those that a newer one overtook before any server loaded them."""
    replaced = (VersionRow.state == VersionState.SERVING.value) | (
        (VersionRow.state == VersionState.READY.value) & (VersionRow.number < row.number)
    )
    others = update(VersionRow).where(VersionRow.draft == row.draft, VersionRow.id != row.id, replaced)
    session.execute(others.values(state=VersionState.RETIRED.value))


def end_serving(session: Session, worker: str, draft: str | None) -> None:
    """Forget that a server drafts with a draft; None forgets all of its drafts, because it ended."""
    ended = delete(ServingRow).where(ServingRow.worker == worker)
    session.execute(ended if draft is None else ended.where(ServingRow.draft == draft))


def serving(session: Session, draft: str) -> dict[str, str]:
    """Server -> its version of one draft."""
    query = select(ServingRow.worker, ServingRow.version).where(ServingRow.draft == draft)
    return {row[0]: row[1] for row in session.execute(query.order_by(ServingRow.worker))}


def served_by(session: Session, worker: str) -> dict[str, str]:
    """Draft -> version, for one server."""
    query = select(ServingRow.draft, ServingRow.version).where(ServingRow.worker == worker)
    return {row[0]: row[1] for row in session.execute(query.order_by(ServingRow.draft))}


def promote(session: Session, version_id: str) -> VersionRow:
    """Make a version current; its files were verified."""
    row, draft = _locked(session, version_id)
    _make_current(session, draft, row)
    return row


def leave(session: Session, version_id: str, to: str | None, state: VersionState, reason: str) -> VersionRow:
    """Put a version into ``state``; if it is current, ``to`` becomes current. Returns what is current then."""
    row, draft = _locked(session, version_id)
    if row.state != state.value:
        row.state = state.value
        note(row, state.value, reason)
    if draft.current_version == row.id and to is not None:
        _make_current(session, draft, get_row(session, to, lock=True))
    return get_row(session, draft.current_version or row.id)


def _make_current(session: Session, draft: DraftRow, row: VersionRow) -> None:
    if row.state != VersionState.SERVING.value:
        row.state = VersionState.READY.value
    draft.current_version = row.id
    announce(session, draft.name)


def _locked(session: Session, version_id: str) -> tuple[VersionRow, DraftRow]:
    draft = lock_draft(session, get_row(session, version_id).draft)
    return get_row(session, version_id, lock=True), draft
