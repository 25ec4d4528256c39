"""Sweeping up segments after killed processes: those that no row refers to and no live process holds."""

from __future__ import annotations

import re

from sqlalchemy import delete, select

from storage.files.places import LocalFolder, Place, Swept
from storage.sql.database import Database
from storage.sql.drivers import insert_for
from storage.sql.tables import SegmentRow

SEGMENT = re.compile(r"[0-9a-f]{32}\.parquet")


def sweep_segments(db: Database, place: Place) -> list[Swept]:
    """Delete orphaned segments and those that were never finished."""
    with db.session(read_only=True) as session:
        known = set(session.scalars(select(SegmentRow.path)))  # nearly all that lie there
    if isinstance(place, LocalFolder):
        return place.sweep(SEGMENT, lambda path: _is_indexed(db, path), known)
    return _sweep_objects(db, place, known)


def _is_indexed(db: Database, path: str) -> bool:
    with db.session(read_only=True) as session:
        return session.scalar(select(SegmentRow.id).where(SegmentRow.path == path)) is not None


def _sweep_objects(db: Database, place: Place, known: set[str]) -> list[Swept]:
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


def take_orphan(db: Database, place: Place, path: str) -> bool:
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
