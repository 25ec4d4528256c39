"""Rows of drafts, versions and leases: locking, reading, checking and creating them within a session.

Every change to a draft locks the draft's row first, so that two workers take turns. A lease says who may train a draft;
an expired one stays with its holder until somebody else claims: the row decides, not the clock of a worker that was
asleep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from storage import records
from storage.errors import (
    BadInput,
    LeaseHeld,
    LeaseLost,
    StoreError,
    UnknownDraft,
    UnknownVersion,
    WeightsDamaged,
    WrongState,
)
from storage.records import DraftVersion, RunState, TrainingRun, VersionState
from storage.sql.database import clock, has_ended
from storage.sql.holders import has_gone
from storage.sql.suspects import note_failure
from storage.sql.tables import DraftRow, LeaseRow, RunRow, SampleRow, VersionRow, record_of

HEIR_OF = "heir_of"
"""Key of a version's evidence: the version, about an earlier target, whose weights it has."""


def known_drafts(session: Session) -> str:
    """Return the names of the drafts that have weights, for a message."""
    query = select(DraftRow.name).where(DraftRow.current_version.is_not(None)).order_by(DraftRow.name)
    return ", ".join(session.scalars(query)) or "none"


def lock_draft(session: Session, draft: str) -> DraftRow:
    """Return the draft's row, locked until the transaction ends. Raises UnknownDraft."""
    row = session.get(DraftRow, draft, with_for_update=True)
    if row is None:
        raise UnknownDraft(draft=draft, known=known_drafts(session))
    return row


def lock_all_drafts(session: Session) -> None:
    """Lock every draft's row, always in the same order, for changes that would cross several claims."""
    session.execute(select(DraftRow.name).order_by(DraftRow.name).with_for_update())


def end_expired(session: Session, draft: str) -> None:
    """End a lease that has expired, or whose holder has gone: its run is LOST and its claim is free. Raises LeaseHeld
    for a live one."""
    lease = session.get(LeaseRow, draft)
    if lease is None:
        return
    run = session.get_one(RunRow, lease.run_id)
    if not has_ended(run.heartbeat_at, run.lease_until, clock(session)) and not has_gone(run.holder):
        raise LeaseHeld(draft=draft, holder=run.holder, until=_clock(run.lease_until))
    if run.state == RunState.CLAIMED.value:
        run.state = RunState.LOST.value
        run.finished_at = records.now()
        run.result = {"reason": f"{run.holder} was not heard of after {_clock(run.heartbeat_at)}"}
        note_failure(session, run, str(run.result["reason"]), lost=True)
        free_requests(session, run.id)
    session.delete(lease)
    session.flush()


def free_requests(session: Session, run_id: str) -> None:
    """Free the requests that a run had claimed, so that the next run may claim them."""
    session.execute(update(SampleRow).where(SampleRow.claimed_by == run_id).values(claimed_by=None))


def require_lease(session: Session, run: TrainingRun) -> RunRow:
    """Return the run's row, with the draft locked. Raises LeaseLost when another run has the draft."""
    lease = session.get(LeaseRow, run.draft)
    if lease is None or lease.run_id != run.id:
        raise LeaseLost(draft=run.draft, holder=run.holder)
    return session.get_one(RunRow, run.id)


def _clock(seconds: float) -> str:
    """Format a time for people, UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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
        path=f"{draft}/{version_id}", **{"evidence": {}, **facts},
    )  # fmt: skip


def note(row: VersionRow, key: str, reason: str) -> None:
    """Record in the evidence why a version changed its state."""
    row.evidence = {**row.evidence, key: {"reason": reason, "at": records.now()}}


def to_record(row: VersionRow) -> DraftVersion:
    """Convert a row to a record."""
    return record_of(DraftVersion, row, state=VersionState(row.state), has_master=bool(row.has_master))
