"""Forgetting of requests or of a tenant: their text is deleted, and the versions that learned from it are named.

Deleted are the samples (segments are rewritten without them), their lines in the log of recent outcomes, and stored
tables of n-grams. Kept are sums by minute, which name no request; request ids in the runs that claimed them, from which
the versions are found; and a line in the audit trail, by which late arrivals are refused
(:mod:`storage.sql.forgotten`). Weights cannot forget, so their versions are named; a proposed split whose draft learned
from them is declined, and the draft deleted.

A table counts n-grams of many requests and names none, so its counts cannot be taken back. Every version born before
the newest line about forgetting is deleted: its files, in the store and in this machine's cache. Its row stays,
quarantined, so that lineage and numbers go on. Servers rebuild tables from stored requests
(``osd/drafters/ngram/table_store.py``).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from storage.errors import BadInput, ForgottenAhead, WrongState
from storage.records import VersionState
from storage.replay.purge import Purged, Purger
from storage.replay.segment_files import SegmentFiles
from storage.routes.proposals import CANDIDATES, ProposalLedger, ProposalState
from storage.routes.route_rows import lock_routes
from storage.routes.route_rows import note as note_route
from storage.sql import audit
from storage.sql.database import Database, changed_rows, chunks
from storage.sql.forgotten import (
    ACTION,
    DROPPED,
    REQUEST,
    TABLE_KIND,
    TENANT,
    ForgottenSinceLine,
    born_after,
    news_after,
    take_turns,
)
from storage.sql.ledger import get_row, lock_draft, note
from storage.sql.outcome_tables import OutcomeRow
from storage.sql.tables import RouteBackgroundRow, SampleRow, VersionRow
from storage.versions.lineage import Learned, learned_from
from storage.versions.weight_files import WeightFiles


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The result of forgetting, with the versions that had learned from it."""

    purged: Purged
    outcomes: int
    """Lines deleted from the log of recent outcomes."""
    learned: Learned
    tables: int
    """Versions of n-gram tables that were deleted because they began to learn before."""


class Forgetter:
    """Forgets requests in segments and their index, and tables of n-grams among the weights."""

    def __init__(self, db: Database, segments: SegmentFiles, weights: WeightFiles, directory: Path) -> None:
        self._db, self._weights, self._candidates = db, weights, directory / CANDIDATES
        self._purger = Purger(db, segments)

    def forget(
        self, request_ids: Sequence[str] = (), *, tenant: str | None = None, who: str | None = None
    ) -> Forgotten:
        """Forget requests, or all of a tenant's. ``who`` is written into the audit trail; None is the login's name.

        Raises BadInput unless exactly one of the two is given, ForgottenAhead when none of the requests is known, and
        SegmentDamaged after everything readable was forgotten.
        """
        if bool(request_ids) == (tenant is not None):
            raise BadInput(reason="Say what to forget: requests by their ids, or a tenant.")
        ids = list(dict.fromkeys(request_ids))
        line = self._note(ids, tenant, who)
        if tenant is not None:
            ids = self._db.scalars(select(SampleRow.request_id).where(SampleRow.tenant == tenant))
        learned = self._db.read(learned_from, ids, tenant)
        outcomes = self._forget_outcomes(ids, tenant)
        declined = tuple(number for number in learned.open_splits if self._decline(number, who))
        if declined != learned.open_splits:  # one was applied meanwhile
            learned = replace(self._db.read(learned_from, ids, tenant), open_splits=declined)
        tables, background = len(self.drop_tables()), self._db.read(_background_of, ids)
        purged = self._purger.purge_requests(ids)
        if background:
            self._note_background(who)
        with self._db.session() as session:
            audit.add_results(session, line, {**asdict(purged), **asdict(learned), "tables": tables})
        self._leave_no_trace()
        if tenant is None and not (purged.requests or outcomes or any(astuple(learned))):
            raise ForgottenAhead(request_id=ids[0])
        return Forgotten(purged, outcomes, learned, tables)

    def news(self, line: int) -> ForgottenSinceLine:
        """Return what was forgotten after a line of the audit trail; 0 comes before all of them."""
        return self._db.read(news_after, line)

    def drop_tables(self) -> list[str]:
        """Delete tables of n-grams, see :func:`drop_tables`."""
        return drop_tables(self._db, self._weights)

    def _forget_outcomes(self, ids: Sequence[str], tenant: str | None) -> int:
        with self._db.session() as session:
            if tenant is not None:
                return changed_rows(session.execute(delete(OutcomeRow).where(OutcomeRow.tenant == tenant)))
            return sum(
                changed_rows(session.execute(delete(OutcomeRow).where(OutcomeRow.request_id.in_(some))))
                for some in chunks(ids)
            )

    def _note_background(self, who: str | None) -> None:
        """Have servers learn topics without prompts that are gone."""
        with self._db.session() as session:
            lock_routes(session)
            left = session.scalar(select(func.count()).select_from(RouteBackgroundRow))
            note_route(session, who, "background", None, {}, {"prompts": left})

    def _decline(self, number: int, who: str | None) -> bool:
        """Decline a split whose draft learned from what is forgotten, and delete that draft on this machine; return
        whether it was still open."""
        facts = {"reason": "requests were forgotten that its draft had learned from"}
        try:
            ProposalLedger(self._db).set_state(number, ProposalState.DECLINED, facts)
        except WrongState:
            return False
        with self._db.session() as session:
            audit.note(session, "router decline", str(number), facts, who=who)
        shutil.rmtree(self._candidates / str(number), ignore_errors=True)
        return True

    def _note(self, ids: Sequence[str], tenant: str | None, who: str | None) -> int:
        """Write the line of the audit trail before searching, so that late arrivals are refused; return its id."""
        subject = tenant if tenant is not None else ids[0] if len(ids) == 1 else None
        facts: dict[str, Any] = {"what": REQUEST if tenant is None else TENANT}
        if subject is None:
            facts["request_ids"] = ids
        with self._db.session() as session:
            take_turns(session, alone=True)
            return audit.note(session, ACTION, subject, facts, who=who)

    def _leave_no_trace(self) -> None:
        """Truncate SQLite's WAL, which holds older copies; freed pages are overwritten already (``secure_delete``)."""
        if self._db.dialect == "sqlite":
            with self._db.engine.connect() as connection:
                connection.rollback()
                connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()  # type: ignore[union-attr]


def _background_of(session: Session, ids: Sequence[str]) -> int:
    """Return how many of these prompts stand for traffic of no topic."""
    count = select(func.count()).select_from(RouteBackgroundRow)
    return sum(session.scalar(count.where(RouteBackgroundRow.request_id.in_(some))) or 0 for some in chunks(ids))


def drop_tables(db: Database, files: WeightFiles) -> list[str]:
    """Delete outdated tables and what killed processes left; return the ids of the versions deleted now. Idempotent.

    No older table comes after it: entering one checks the line (:func:`require_born_after_all`). Raises
    StoreWriteFailed, PlaceUnreachable.
    """
    columns = VersionRow.id, VersionRow.path, VersionRow.evidence
    with db.session(read_only=True) as session:
        line = news_after(session, 0).line
        tables = session.execute(select(*columns).where(VersionRow.kind == TABLE_KIND).order_by(VersionRow.id)).all()
    dropped = []
    for version_id, path, evidence in tables:
        if DROPPED in evidence:
            files.uncache(path)  # another machine deleted it from the store alone
        elif born_after(evidence) < line:
            with db.session() as session:
                if _drop(session, files, version_id):
                    dropped.append(version_id)
    if tables:
        files.sweep(db)
    return dropped


def _drop(session: Session, files: WeightFiles, version_id: str) -> bool:
    """Delete a version's files and then its row's state: if the process dies in between, the next call finishes."""
    lock_draft(session, get_row(session, version_id).draft)
    row = get_row(session, version_id, lock=True)
    if DROPPED in row.evidence:
        return False
    files.remove(row.path)
    row.state = VersionState.QUARANTINED.value
    note(row, DROPPED, "requests were forgotten after it had begun to learn")
    return True
