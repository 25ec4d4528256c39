"""The ledger of training runs: claims on waiting requests, leases on drafts, and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from storage import records
from storage.access.tenants import usable_for
from storage.errors import NotFound, UnknownDraft, WrongState
from storage.records import RunState, TrainingRun
from storage.replay.sample_index import IS_WAITING, candidate_routes, oldest, routes_of
from storage.settings import EVERYTHING, PrivacySettings
from storage.sql.database import Database, chunks, clock
from storage.sql.drivers import plain
from storage.sql.ledger import end_expired, free_requests, known_drafts, lock_draft, require_lease
from storage.sql.suspects import IS_CLEAN, RETRY, half_of_a_group, note_failure
from storage.sql.tables import DraftRow, LeaseRow, RunRow, SampleRow, record_of
from storage.versions.draft_choices import require_free
from storage.versions.lineage import note_material
from storage.versions.targets import about

BEGAN = "began"
"""Key in a run's settings: why it began, the fields of a :class:`RunReason`."""


@dataclass(frozen=True, slots=True)
class RunReason:
    """Why a training run began."""

    why: str
    """``interval``, ``age``, ``retry``; with ``learn.interval_requests = "auto"`` also ``first``, ``drift``,
    ``pays``."""
    words: str


AGAIN = RunReason("retry", "requests of a run that failed are tried again")


Runs = list[TrainingRun]
Wanted = Sequence[ColumnElement[bool]]

TAKEN_UNTIL = "taken_until"
"""Key in the settings of a run that claims nothing: creation time of the newest request that it took."""


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """When a run is due, what it may take, and how long its lease is."""

    min_requests: int
    """A run is due when so many requests wait."""
    max_age_seconds: float
    """It is due with fewer, when the oldest has waited so long."""
    lease_seconds: float
    max_requests: int | None = None
    """It takes so many at most, and leaves the rest to the next run."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What it trains with, kept with the run."""
    reason: RunReason | None = None
    """Why ``min_requests`` are enough, kept with the run."""


class RunLedger:
    """The training runs. One worker trains a draft at a time; a dead worker's claim is freed when its lease has run
    out."""

    def __init__(self, db: Database, privacy: PrivacySettings = EVERYTHING) -> None:
        self._db = db
        self._privacy = privacy

    def claim(self, draft: str, holder: str, terms: ClaimTerms, *, retry: bool = True) -> TrainingRun | None:
        """Claim the requests waiting for a draft, oldest first, and its lease, in one transaction; None when nothing is
        due.

        Where nothing new is due, ``retry`` takes some of those on which a run has failed (:mod:`storage.sql.suspects`).
        Raises LeaseHeld while another run's lease lives, UnknownDraft for a draft without weights, DraftHeld for one
        that people hold.
        """
        with self._db.session() as session:
            current = _lock_current(session, draft)
            waiting = (*IS_WAITING, usable_for(session, draft, self._privacy), about(session, draft))
            routes, facts, clean = routes_of(session, draft), dict(terms.settings), (*waiting, IS_CLEAN)
            if due := _why_due(session, routes, clean, terms):
                taken = [request_id for request_id, _ in oldest(session, routes, clean, terms.max_requests)]
                facts[BEGAN] = asdict(terms.reason or due)
            elif retry and (taken := half_of_a_group(session, routes, waiting, terms.max_requests)):
                facts |= {RETRY: True, BEGAN: asdict(AGAIN)}
            else:
                return None
            run = _begin(session, draft, holder, current, terms, facts, taken)
            for some in chunks(taken):
                session.execute(update(SampleRow).where(SampleRow.request_id.in_(some)).values(claimed_by=run.id))
            return to_record(run)

    def claim_beside(self, name: str, draft: str, holder: str, terms: ClaimTerms) -> TrainingRun | None:
        """Claim as :meth:`claim` does, for ``name``, which learns from the same requests as ``draft`` (its acceptance
        head); where both are one, from those of the routes that the draft might serve and does not.

        What is taken stays free for the draft's own runs. Taken are requests newer than all that the last judged run of
        ``name`` took; those of a run that failed or was lost are taken again. Raises LeaseHeld, UnknownDraft.
        """
        with self._db.session() as session:
            current = _lock_current(session, name)
            routes = candidate_routes(session, draft) if name == draft else routes_of(session, draft)
            since = SampleRow.created_at > _taken_until(session, name)
            usable = usable_for(session, draft, self._privacy) & about(session, draft)
            new = (SampleRow.holdout.is_(False), SampleRow.set_aside.is_(None), since, usable)
            if (due := _why_due(session, routes, new, terms)) is None:
                return None
            taken = oldest(session, routes, new, terms.max_requests)
            facts = {**terms.settings, TAKEN_UNTIL: taken[-1][1], BEGAN: asdict(due)}
            return to_record(_begin(session, name, holder, current, terms, facts, [each[0] for each in taken]))

    def note_replayed(self, run: TrainingRun, request_ids: Sequence[str]) -> None:
        """Record the replayed requests of a run before it trains on them; `osd replay forget` looks them up.

        Raises LeaseLost when another run has the draft.
        """
        with self._db.session() as session:
            lock_draft(session, run.draft)
            note_material(session, require_lease(session, run), request_ids)

    def heartbeat(self, run: TrainingRun, lease_seconds: float) -> TrainingRun:
        """Renew the lease. Raises LeaseLost when another run has the draft, DraftHeld when people hold it."""
        with self._db.session() as session:
            draft = lock_draft(session, run.draft)
            row = require_lease(session, run)
            require_free(draft)
            row.heartbeat_at = clock(session)
            row.lease_until = row.heartbeat_at + lease_seconds
            return to_record(row)

    def finish(
        self,
        run: TrainingRun,
        state: RunState,
        version: str | None = None,
        result: Mapping[str, Any] | None = None,
        *,
        blame: bool = False,
    ) -> TrainingRun:
        """End a run and its lease; twice is fine.

        A FAILED run's requests are free again; ``blame`` makes them suspects, as possible causes of the failure.
        A run that published is PUBLISHED already; finishing it adds the result and releases the lease. Raises
        LeaseLost when another run has the draft, WrongState for a run that ended otherwise.
        """
        with self._db.session() as session:
            lock_draft(session, run.draft)
            row = _get(session, run.id)
            if row.finished_at is None or row.state == RunState.LOST.value:
                row = require_lease(session, run)
            if blame and row.state == RunState.CLAIMED.value:
                note_failure(session, row, str((result or {}).get("reason", "")))
            _end(session, row, state, version)
            if result is not None:
                row.result = plain(result)
            return to_record(row)

    def get(self, run_id: str) -> TrainingRun:
        """Return a run. Raises NotFound."""
        return to_record(self._db.read(_get, run_id))

    def list(self, draft: str | None = None, limit: int = 50) -> Runs:
        """Return the newest runs, newest first."""
        query = select(RunRow).order_by(RunRow.started_at.desc(), RunRow.id).limit(limit)
        if draft is not None:
            query = query.where(RunRow.draft == draft)
        return [to_record(row) for row in self._db.scalars(query)]


def _lock_current(session: Session, draft: str) -> str:
    """Return the version that a run starts from, with the draft locked and expired runs ended.

    Raises UnknownDraft for a draft without weights, LeaseHeld, DraftHeld.
    """
    current, at = lock_draft(session, draft).current_version, clock(session)
    session.execute(update(SampleRow).where(SampleRow.created_at > at).values(created_at=at))  # else newest until then
    if current is None:
        raise UnknownDraft(draft=draft, known=known_drafts(session))
    end_expired(session, draft)
    require_free(session.get_one(DraftRow, draft))
    return current


def _why_due(session: Session, routes: Sequence[str], wanted: Wanted, terms: ClaimTerms) -> RunReason | None:
    first = oldest(session, routes, wanted, terms.min_requests)
    if first and len(first) >= terms.min_requests:
        return RunReason("interval", f"{terms.min_requests} requests or more waited")
    if first and (age := records.now() - first[0][1]) >= terms.max_age_seconds:
        return RunReason("age", f"the oldest request had waited {age:.0f} s")
    return None


def _taken_until(session: Session, name: str) -> float:
    """Return the creation time of the newest request that a judged run took beside others; 0 before the first such
    run. Runs of a draft's own routes stand between a candidate's."""
    judged = RunRow.state.in_([RunState.PUBLISHED.value, RunState.REJECTED.value])
    taken = RunRow.settings[TAKEN_UNTIL].as_float()
    last = select(taken).where(RunRow.draft == name, judged, taken <= clock(session))
    return float(session.scalar(last.order_by(RunRow.started_at.desc()).limit(1)) or 0.0)


def _begin(
    session: Session, draft: str, holder: str, parent: str, terms: ClaimTerms, settings: Mapping[str, Any],
    taken: list[str],
) -> RunRow:  # fmt: skip
    """Enter a run over the requests taken, and its lease."""
    now = clock(session)
    run = RunRow(
        id=records.new_id(), draft=draft, holder=holder, state=RunState.CLAIMED.value, started_at=now, heartbeat_at=now,
        lease_until=now + terms.lease_seconds, parent=parent, request_ids=taken, replayed=[], tenants=[],
        settings=plain(settings), result={},
    )  # fmt: skip
    session.add(run)
    session.flush()
    note_material(session, run, ())
    session.add(LeaseRow(draft=draft, run_id=run.id))
    return run


def _get(session: Session, run_id: str) -> RunRow:
    if (row := session.get(RunRow, run_id)) is None:
        raise NotFound(reason=f"There is no training run {run_id!r}.")
    return row


def _end(session: Session, row: RunRow, state: RunState, version: str | None) -> None:
    if row.state not in (RunState.CLAIMED.value, state.value):
        action = f"ending it as {state.value}"
        raise WrongState(version=f"Training run {row.id}", state=row.state, action=action, needed="a claimed one")
    if row.state == RunState.CLAIMED.value:
        row.state, row.finished_at = state.value, records.now()
    row.version = version or row.version
    if state is RunState.FAILED:
        free_requests(session, row.id)
    lease = session.get(LeaseRow, row.draft)
    if lease is not None and lease.run_id == row.id:
        session.delete(lease)


def to_record(row: RunRow) -> TrainingRun:
    """Convert a row to a record."""
    return record_of(TrainingRun, row, state=RunState(row.state), request_ids=tuple(row.request_ids))
