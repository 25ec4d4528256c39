"""Promotion: which version is current and which are served, once a version is READY.

Each function works within the caller's transaction and locks the draft first.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from storage import records
from storage.access.processes import gone_servers
from storage.errors import WeightsDamaged
from storage.records import VersionState
from storage.sql.forgotten import DROPPED
from storage.sql.ledger import get_row, lock_draft, note, require_weights
from storage.sql.tables import CanaryRow, DraftRow, ServingRow, VersionRow

SOUND = (VersionState.READY, VersionState.SERVING, VersionState.RETIRED)
"""States of versions that a draft may automatically roll back to."""
WATCHING, RELEASED = "watching", "released"
"""Values of :class:`storage.versions.canaries.CanaryState`."""


def mark_serving(session: Session, version_id: str, worker: str) -> VersionRow:
    """Record that a server has loaded a version: it becomes SERVING, and those that it replaces RETIRED.

    Only the current version becomes SERVING: a server that lags behind is noted and changes no state.
    """
    row, draft = _locked(session, version_id)
    session.merge(ServingRow(worker=worker, draft=row.draft, version=row.id, since=records.now()))
    if draft.current_version == row.id and not _is_tried_by(session, row, worker):
        released(session, row)
    return row


def _is_tried_by(session: Session, row: VersionRow, worker: str) -> bool:
    """Return whether the server serves the version as a canary.

    An open canary that another server loads is released to all here: that was a choice by hand.
    """
    if not is_watched(session, row.id):
        return False
    if session.get_one(CanaryRow, row.id).worker == worker:
        return True
    _release_by_hand(session, row, f"{worker} serves it, too")
    return False


def released(session: Session, row: VersionRow) -> None:
    """Make a version SERVING and retire those that it replaces; one taken back meanwhile stays so."""
    if row.state == VersionState.READY.value:
        row.state, row.served_at = VersionState.SERVING.value, row.served_at or records.now()
        _retire_others(session, row)


def is_watched(session: Session, version_id: str) -> bool:
    """Return whether the version is an open canary, see :mod:`storage.versions.canaries`."""
    row = session.get(CanaryRow, version_id)
    return row is not None and row.state == WATCHING


def _retire_others(session: Session, row: VersionRow) -> None:
    """Retire served versions, and those that a newer one overtook before any server loaded them."""
    replaced = (VersionRow.state == VersionState.SERVING.value) | (
        (VersionRow.state == VersionState.READY.value) & (VersionRow.number < row.number)
    )
    others = update(VersionRow).where(VersionRow.draft == row.draft, VersionRow.id != row.id, replaced)
    session.execute(others.values(state=VersionState.RETIRED.value))


def end_serving(session: Session, worker: str, draft: str | None) -> None:
    """Record that a server no longer drafts with a draft; None means all of its drafts, because it ended."""
    ended = delete(ServingRow).where(ServingRow.worker == worker)
    session.execute(ended if draft is None else ended.where(ServingRow.draft == draft))


def serving(session: Session, draft: str) -> dict[str, str]:
    """Return server -> its version of a draft, without servers known to be gone."""
    query, away = select(ServingRow.worker, ServingRow.version).where(ServingRow.draft == draft), gone_servers(session)
    return {row[0]: row[1] for row in session.execute(query.order_by(ServingRow.worker)) if row[0] not in away}


def served_by(session: Session, worker: str) -> dict[str, str]:
    """Return draft -> version, for one server."""
    query = select(ServingRow.draft, ServingRow.version).where(ServingRow.worker == worker)
    return {row[0]: row[1] for row in session.execute(query.order_by(ServingRow.draft))}


def promote(session: Session, version_id: str) -> VersionRow:
    """Make a version with verified files current; a canary that is current is released to all."""
    row, draft = _locked(session, version_id)
    if draft.current_version == row.id:
        _release_by_hand(session, row, "promoted while it was tried")
    _make_current(session, draft, row)
    return row


def settle_heir(session: Session, version_id: str, evidence: dict[str, Any], *, good: bool) -> VersionRow:
    """Make a candidate current that was judged on its line's target, or reject it; return the line's current version.
    It is rejected, too, where its parent is no longer current: what was published meanwhile has learned there."""
    row, draft = _locked(session, version_id)
    if row.state == VersionState.CANDIDATE.value:
        row.evidence = {**row.evidence, **evidence}
        if good and row.parent == draft.current_version and not draft.hold:
            _make_current(session, draft, row)
        else:
            row.state = VersionState.REJECTED.value
    return get_row(session, draft.current_version or row.id)


def leave(session: Session, version_id: str, to: str | None, state: VersionState, reason: str) -> VersionRow:
    """Put a version into ``state``; if it is current, ``to`` becomes current. Return the current version afterwards."""
    row, draft = _locked(session, version_id)
    if row.state != state.value:
        row.state = state.value
        note(row, state.value, reason)
    if draft.current_version == row.id and to is not None:
        back = get_row(session, to, lock=True)
        _make_current(session, draft, back)
        note_released(session, back, "gone back to")
    return get_row(session, draft.current_version or row.id)


def _release_by_hand(session: Session, row: VersionRow, reason: str) -> None:
    if is_watched(session, row.id):
        tried = session.get_one(CanaryRow, row.id)
        tried.state, tried.settled_at, tried.facts = RELEASED, records.now(), {**tried.facts, "reason": reason}


def note_released(session: Session, row: VersionRow, reason: str) -> None:
    """Settle the canary of a version that all are to serve at once as released."""
    if row.parent is not None and not is_watched(session, row.id):
        at = records.now()
        session.merge(CanaryRow(
            version=row.id, draft=row.draft, base=row.id, state=RELEASED, worker=None, claims=0, looks=0, began_at=at,
            settled_at=at, facts={"reason": reason},
        ))  # fmt: skip


def _make_current(session: Session, draft: DraftRow, row: VersionRow) -> None:
    if DROPPED in row.evidence:  # its files were verified earlier
        raise WeightsDamaged(version=row.id, reason=row.evidence[DROPPED]["reason"])
    require_weights(row)
    if row.state != VersionState.SERVING.value:
        row.state = VersionState.READY.value
    set_current(session, draft, row.id)


def set_current(session: Session, draft: DraftRow, version_id: str) -> None:
    """Enter the version that servers should draft with, with the draft locked."""
    if draft.current_version != version_id:
        draft.previous_version, draft.current_version = draft.current_version, version_id


def _locked(session: Session, version_id: str) -> tuple[VersionRow, DraftRow]:
    draft = lock_draft(session, get_row(session, version_id).draft)
    return get_row(session, version_id, lock=True), draft
