"""Sweeping up after killed processes: files of osd's that no row refers to and no live process holds.

In a folder a lock tells whether a writer lives. In an object store the index decides, see :func:`sweep_bucket`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import delete, select

from storage import records
from storage.files.bucket import Found
from storage.files.files import ASIDE, remove, seized, size_of, writing
from storage.replay.segment_place import BucketSegments, LocalSegments, SegmentPlace
from storage.sql.database import Database
from storage.sql.drivers import insert_for
from storage.sql.tables import SegmentRow, VersionRow

SEGMENT = re.compile(r"[0-9a-f]{32}\.parquet")
VERSION = re.compile(r".+-\d{6}-[0-9a-f]{8}")
GRACE_SECONDS = 3600.0
"""Age in seconds below which objects are left alone, as they may be being entered. Safety does not rest on it."""


@dataclass(frozen=True, slots=True)
class Swept:
    """A file or folder that was deleted."""

    path: Path | str
    bytes: int


def sweep_segments(db: Database, place: SegmentPlace) -> list[Swept]:
    """Delete orphaned segments and those that were never finished."""
    if isinstance(place, LocalSegments):
        return _sweep_folder(db, place.folder)
    assert isinstance(place, BucketSegments)
    return sweep_bucket(db, place)


def _sweep_folder(db: Database, folder: Path) -> list[Swept]:

    def is_indexed(path: str) -> bool:
        with db.session(read_only=True) as session:
            return session.scalar(select(SegmentRow.id).where(SegmentRow.path == path)) is not None

    found = list(_candidates(folder, SEGMENT))
    with db.session(read_only=True) as session:
        known = set(session.scalars(select(SegmentRow.path)))  # nearly all of them: only the rest is looked at closely
    rest = [path for path in found if path.relative_to(folder).as_posix() not in known]
    return [swept for path in rest if (swept := _sweep_one(folder, path, is_indexed))]


def sweep_weights(db: Database, folder: Path) -> list[Swept]:
    """Delete folders of weights whose versions were never entered in the ledger, or whose deletion did not finish."""

    def is_known(path: str) -> bool:
        with db.session(read_only=True) as session:
            known = select(VersionRow.id).where(VersionRow.path == path, VersionRow.deleted_at.is_(None))
            return session.scalar(known) is not None

    return [swept for path in _candidates(folder, VERSION) if (swept := _sweep_one(folder, path, is_known))]


def _candidates(folder: Path, ours: re.Pattern[str]) -> Iterator[Path]:
    """Yield files of osd's, one folder deep; others are left alone."""
    for path in sorted(folder.glob("*/*")) + sorted(folder.glob("*/.*")):
        if ours.fullmatch(path.name) or (path.name.startswith(".") and path.name.endswith(ASIDE)):
            yield path


def _sweep_one(folder: Path, path: Path, is_known: Callable[[str], bool]) -> Swept | None:
    """Delete one orphan; None if it is none. The index is asked once the file is locked: a live writer has committed
    then."""
    with seized(path) as free, writing(path):
        if not free or is_known(path.relative_to(folder).as_posix()):
            return None
        try:
            swept = Swept(path, size_of(path))
        except FileNotFoundError:  # a purge has just deleted it
            return None
        remove(path)
    return swept


def sweep_bucket(db: Database, place: BucketSegments) -> list[Swept]:
    """Delete objects that no row refers to.

    There are no locks in an object store, so the index decides. The sweep enters the orphan as a segment of its own,
    deletes the object, and removes the row, in one transaction. A writer that enters the same segment waits for
    it, then finds its object gone and fails (:meth:`storage.replay.segment_files.NewSegment.enter`); the other way
    round, the sweep waits and finds the row. That holds however old the object is and whatever the clocks say.
    """
    with db.session(read_only=True) as session:
        known = set(session.scalars(select(SegmentRow.path)))
    found = [each for each in place.bucket.list() if SEGMENT.fullmatch(each.path.rpartition("/")[2])]
    return [
        Swept(place.show(each.path), each.bytes)
        for each in found
        if each.path not in known and is_old(each) and _take_orphan(db, place, each.path)
    ]


def is_old(found: Found) -> bool:
    """Return whether the object is too old for a live process to be entering it."""
    return found.modified.timestamp() < records.now() - GRACE_SECONDS


def _take_orphan(db: Database, place: BucketSegments, path: str) -> bool:
    segment_id = path.rpartition("/")[2].removesuffix(".parquet")
    row = {"id": segment_id, "path": path, "created_at": 0.0, "requests": 0, "positions": 0, "bytes": 0}
    with db.session() as session:
        enter = insert_for(db.dialect)(SegmentRow).values(row).on_conflict_do_nothing().returning(SegmentRow.id)
        if session.scalar(enter) is None:
            return False
        place.remove(path)
        session.execute(delete(SegmentRow).where(SegmentRow.id == segment_id))
    return True
