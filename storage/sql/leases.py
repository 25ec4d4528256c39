"""Leases: who may train a draft. One row a draft while it is trained.

Every change to a draft locks the draft's row first, so that two workers take turns. An expired lease stays with its
holder until somebody else claims: the row decides, not the clock of a worker that was asleep.
"""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from storage import records
from storage.errors import LeaseHeld, LeaseLost, UnknownDraft
from storage.records import RunState, TrainingRun
from storage.sql.suspects import note_failure
from storage.sql.tables import DraftRow, LeaseRow, RunRow, SampleRow


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
    """End an expired lease: its run is LOST and its claim is free. Raises LeaseHeld for a live one."""
    lease = session.get(LeaseRow, draft)
    if lease is None:
        return
    run = session.get_one(RunRow, lease.run_id)
    if run.lease_until > records.now():
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
