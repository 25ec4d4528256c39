"""Purging: deletion of samples for good, both their bytes and their index.

A segment all of whose requests are purged is dropped; otherwise the rest is written into a new segment.
Either happens in one transaction a segment, and the old file is deleted after it; should the process die between
the two, the file is an orphan, which no row refers to and no live process holds: the next purge or sweep deletes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, delete, or_, select, update
from sqlalchemy.orm import Session

from storage.errors import BadInput, NotFound, SegmentDamaged, StoreError, UnknownRequest
from storage.files.places import FilePlace, LocalFolder, Swept
from storage.records import RequestSamples, RunState
from storage.replay.sample_index import meeting
from storage.replay.segment_files import NewSegment, SegmentFiles
from storage.sql.database import Database, changed_rows, chunks
from storage.sql.drivers import insert_for
from storage.sql.ledger import lock_all_drafts
from storage.sql.outcome_tables import OutcomeRow
from storage.sql.tables import RunRow, SampleRow, SegmentRow


@dataclass(frozen=True, slots=True)
class Purged:
    """The totals of a purge."""

    requests: int
    segments: int
    """Segments dropped or rewritten."""
    bytes: int
    """Disk space freed in bytes."""
    rewritten: int = 0
    """Size in bytes of the new segments that hold the rest."""

    def __add__(self, other: Purged) -> Purged:
        return Purged(
            self.requests + other.requests, self.segments + other.segments, self.bytes + other.bytes,
            self.rewritten + other.rewritten,
        )  # fmt: skip


NOTHING = Purged(0, 0, 0)
SEGMENT = re.compile(r"[0-9a-f]{32}\.parquet")
Conditions = list[ColumnElement[bool]]

UNCLAIMED = or_(
    SampleRow.claimed_by.is_(None),
    SampleRow.claimed_by.not_in(select(RunRow.id).where(RunRow.state == RunState.CLAIMED.value)),
)
"""SQL condition: claimed by no unfinished run."""


class Purger:
    """Purges segments."""

    def __init__(self, db: Database, files: SegmentFiles) -> None:
        self._db, self._files = db, files

    def purge(self, *, everything: bool = False, **conditions: Any) -> Purged:
        """Delete the requests that meet every condition given (:func:`storage.replay.sample_index.meeting`);
        ``everything`` needs no condition.

        A request's or a tenant's lines in the log of recent outcomes are deleted too; sums by minute stay. A damaged
        segment can only be dropped whole: the others are purged, then SegmentDamaged is raised. Raises BadInput when no
        condition is given, UnknownRequest, NotFound for a missing segment.
        """
        wanted = meeting(**conditions)
        if bool(wanted) == everything:
            known = "a request, tenant, route, target, time or segment"
            raise BadInput(reason=f"Say what to purge: {known}, or else everything.")
        given = {name: value for name, value in conditions.items() if value is not None}
        logged = self._forget_outcomes(given) if given.keys() <= {"request_id", "tenant"} else 0
        purged = self._purge_all(wanted)
        sweep_segments(self._db, self._files.place)
        if "request_id" in given and not (purged.requests or logged):
            raise UnknownRequest(request_id=given["request_id"])
        if "segment" in given and not purged.segments:
            raise NotFound(reason=f"There is no sample segment {given['segment']!r} with such requests.")
        return purged

    def purge_requests(self, request_ids: Sequence[str], *, spare_claimed: bool = False) -> Purged:
        """Delete these requests, rewriting each segment once; unknown ones are skipped.

        ``spare_claimed`` keeps what an unfinished run has claimed. Damaged segments as in :meth:`purge`.
        """
        purged = NOTHING
        for some in chunks(request_ids):
            wanted: Conditions = [SampleRow.request_id.in_(some)]
            purged += self._purge_all([*wanted, UNCLAIMED] if spare_claimed else wanted)
        sweep_segments(self._db, self._files.place)
        return purged

    def _purge_all(self, wanted: Conditions) -> Purged:
        purged = NOTHING
        damaged: dict[str, SegmentDamaged] = {}
        while todo := [segment_id for segment_id in self._affected(wanted) if segment_id not in damaged]:
            for segment_id in todo:
                try:
                    purged += self._purge_segment(segment_id, wanted)
                except SegmentDamaged as error:
                    damaged[segment_id] = error
                except SegmentMoved:
                    continue  # the next round finds where its requests are now
        for first in damaged.values():
            raise first
        return purged

    def _affected(self, wanted: Conditions) -> list[str]:
        return self._db.scalars(select(SampleRow.segment_id).where(*wanted).distinct())

    def _purge_segment(self, segment_id: str, wanted: Conditions) -> Purged:
        with self._db.session() as session:
            old = lock_segment(session, segment_id)
            query = select(SampleRow.request_id).where(SampleRow.segment_id == segment_id, *wanted)
            doomed = set(session.scalars(query))
            if not doomed:
                return NOTHING
            if whole := len(doomed) == old.requests:
                drop_segment(session, old)
        kept_bytes = 0 if whole else self._rewrite(old, doomed)
        self._files.place.remove(old.path)
        return Purged(len(doomed), 1, old.bytes - kept_bytes, kept_bytes)

    def _rewrite(self, old: SegmentRow, doomed: set[str]) -> int:
        """Write a segment's remaining requests into a new one; return its bytes."""
        try:
            everybody = self._files.read(old.id, old.path)
        except FileNotFoundError:
            raise self._missing(old) from None
        return self.replace([old], [each for each in everybody if each.request_id not in doomed])

    def replace(self, old: Sequence[SegmentRow], batch: Sequence[RequestSamples]) -> int:
        """Write a batch as a new segment in the place of old ones, whose index goes over to it in one transaction;
        return its bytes. Raises SegmentMoved when one of them is gone."""
        sizes: list[int] = []

        def index(new: NewSegment) -> None:
            sizes.append(new.segment["bytes"])
            with self._db.session() as session:
                locked = [lock_segment(session, row.id) for row in old]
                new.enter(session)
                session.execute(update(SampleRow), new.requests)
                for row in locked:
                    drop_segment(session, row)

        self._files.write(batch, index)
        return sizes[0]

    def _missing(self, old: SegmentRow) -> StoreError:
        with self._db.session(read_only=True) as session:
            if session.get(SegmentRow, old.id) is None:
                return SegmentMoved(reason="another purge was faster")
        return self._files.damaged(old.id, old.path)

    def _forget_outcomes(self, given: Mapping[str, Any]) -> int:
        wanted = [getattr(OutcomeRow, name) == value for name, value in given.items()]
        with self._db.session() as session:
            return changed_rows(session.execute(delete(OutcomeRow).where(*wanted)))


class SegmentMoved(StoreError):
    """{reason}"""


def lock_segment(session: Session, segment_id: str) -> SegmentRow:
    """Return a segment's row, locked after every draft. Raises Moved when it is gone."""
    lock_all_drafts(session)  # a claim locks the same rows in another order, which would deadlock
    row = session.get(SegmentRow, segment_id, with_for_update=True)
    if row is None:
        raise SegmentMoved(reason="another purge was faster")
    return row


def drop_segment(session: Session, segment: SegmentRow) -> None:
    """Delete a segment's row and whatever is still indexed in it."""
    session.execute(delete(SampleRow).where(SampleRow.segment_id == segment.id))
    session.execute(delete(SegmentRow).where(SegmentRow.id == segment.id))


def sweep_segments(db: Database, place: FilePlace) -> list[Swept]:
    """Delete orphaned segments and those that were never finished."""
    known = set(db.scalars(select(SegmentRow.path)))  # nearly all that lie there
    if isinstance(place, LocalFolder):
        return place.sweep(SEGMENT, lambda path: _is_indexed(db, path), known)
    return _sweep_objects(db, place, known)


def _is_indexed(db: Database, path: str) -> bool:
    return db.scalar(select(SegmentRow.id).where(SegmentRow.path == path)) is not None


def _sweep_objects(db: Database, place: FilePlace, known: set[str]) -> list[Swept]:
    """Delete objects that no row refers to.

    There are no locks in an object store, so the index decides. The sweep enters the orphan as a segment of its own,
    deletes the object, and removes the row, in one transaction. A writer that enters the same segment waits for
    it, then finds its object gone and fails (:meth:`storage.replay.segment_files.NewSegment.enter`); the other way
    round, the sweep waits and finds the row. That holds however old the object is and whatever the clocks say.
    """
    found = [each for each in place.list() if SEGMENT.fullmatch(each.path.rpartition("/")[2])]
    return [
        Swept(place.show(each.path), each.bytes)
        for each in found
        if each.path not in known and each.is_old and take_orphan(db, place, each.path)
    ]


def take_orphan(db: Database, place: FilePlace, path: str) -> bool:
    """Delete an object that no row refers to; False where one does."""
    segment_id = path.rpartition("/")[2].removesuffix(".parquet")
    row = {"id": segment_id, "path": path, "created_at": 0.0, "requests": 0, "positions": 0, "bytes": 0}
    with db.session() as session:
        enter = insert_for(db.dialect)(SegmentRow).values(row).on_conflict_do_nothing().returning(SegmentRow.id)
        if session.scalar(enter) is None:
            return False
        place.remove(path)
        session.execute(delete(SegmentRow).where(SegmentRow.id == segment_id))
    return True
