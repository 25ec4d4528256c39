"""Forgetting requests or a tenant: nothing of what was said stays, and the versions that learned from it are named.

What goes: the samples (segments are written anew without them), the lines in the log of recent outcomes. What stays:
sums by minute, which name no request; the ids of requests in the runs that claimed them, by which the versions are
found; a line in the trail of admins' changes, by which what still comes is refused (:mod:`storage.replay.forgotten`).
Weights cannot be made to forget: they are named. Stored tables of n-grams are deleted
(:mod:`storage.versions.forgotten_tables`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import delete, select

from storage.errors import BadInput, ForgottenAhead
from storage.replay.forgotten import ACTION, REQUEST, TENANT, News, news_after, take_turns
from storage.replay.purge import Purged, Purger
from storage.replay.sample_index import chunks
from storage.replay.segment_place import SegmentPlace
from storage.sql import admin_log
from storage.sql.database import Database, changed_rows
from storage.sql.tables import OutcomeRow, SampleRow
from storage.versions.forgotten_tables import drop_tables
from storage.versions.lineage import Learned, learned_from
from storage.versions.weight_place import WeightPlace


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was forgotten, and who has learned from it."""

    purged: Purged
    outcomes: int
    """Lines of the log of recent outcomes."""
    learned: Learned
    tables: int
    """Versions of n-gram tables that were deleted, because they had begun to learn before."""


class Forgetter:
    """Forgets what is kept in segments of ``place`` and its index, and in tables among ``weights``."""

    def __init__(self, db: Database, place: SegmentPlace, weights: WeightPlace) -> None:
        self._db, self._weights = db, weights
        self._purger = Purger(db, place)

    def forget(
        self, request_ids: Sequence[str] = (), *, tenant: str | None = None, who: str | None = None
    ) -> Forgotten:
        """Forget requests, or all of a tenant's. ``who`` is written into the trail; None is the login's name.

        Raises BadInput unless it is one of the two, ForgottenAhead when nothing is known of any of the requests,
        SegmentDamaged after all that can be read was forgotten.
        """
        if bool(request_ids) == (tenant is not None):
            raise BadInput(reason="Say what to forget: requests by their ids, or a tenant.")
        ids = list(dict.fromkeys(request_ids))
        line = self._note(ids, tenant, who)
        ids = ids if tenant is None else self._ids_of(tenant)
        with self._db.session(read_only=True) as session:
            learned = learned_from(session, ids, tenant)
        outcomes = self._forget_outcomes(ids, tenant)
        tables = len(self.drop_tables())
        purged = self._purger.purge_requests(ids)
        with self._db.session() as session:
            admin_log.add_facts(session, line, {**asdict(purged), **asdict(learned), "tables": tables})
        self._leave_no_trace()
        if tenant is None and not (purged.requests or outcomes or learned.versions or learned.under_way):
            raise ForgottenAhead(request_id=ids[0])
        return Forgotten(purged, outcomes, learned, tables)

    def news(self, line: int) -> News:
        """What was forgotten after a line of the trail; 0 is before all of them."""
        with self._db.session(read_only=True) as session:
            return news_after(session, line)

    def drop_tables(self) -> list[str]:
        """See :func:`storage.versions.forgotten_tables.drop_tables`."""
        return drop_tables(self._db, self._weights)

    def _ids_of(self, tenant: str) -> list[str]:
        with self._db.session(read_only=True) as session:
            return list(session.scalars(select(SampleRow.request_id).where(SampleRow.tenant == tenant)))

    def _forget_outcomes(self, ids: Sequence[str], tenant: str | None) -> int:
        with self._db.session() as session:
            if tenant is not None:
                return changed_rows(session.execute(delete(OutcomeRow).where(OutcomeRow.tenant == tenant)))
            return sum(
                changed_rows(session.execute(delete(OutcomeRow).where(OutcomeRow.request_id.in_(some))))
                for some in chunks(ids)
            )

    def _note(self, ids: Sequence[str], tenant: str | None, who: str | None) -> int:
        """The line of the trail, before anything is looked for: what comes from now on is refused."""
        subject = tenant if tenant is not None else ids[0] if len(ids) == 1 else None
        facts: dict[str, Any] = {"what": REQUEST if tenant is None else TENANT}
        if subject is None:
            facts["request_ids"] = ids
        with self._db.session() as session:
            take_turns(session, alone=True)
            return admin_log.note(session, who, ACTION, subject, facts)

    def _leave_no_trace(self) -> None:
        """Freed pages are overwritten as they are freed (``secure_delete``); the log of writes holds older copies."""
        if self._db.dialect == "sqlite":
            with self._db.engine.connect() as connection:
                connection.rollback()
                connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()  # type: ignore[union-attr]
