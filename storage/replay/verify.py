"""Verification that segments and index agree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from storage.errors import SegmentDamaged
from storage.replay.segment_files import read_whole
from storage.replay.segment_place import SegmentPlace
from storage.sql.database import Database
from storage.sql.tables import SampleRow, SegmentRow


@dataclass(frozen=True, slots=True)
class Fault:
    """A difference between segments and index."""

    segment: str
    path: Path | str
    """Path of a file, or an object's URL."""
    reason: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification: counts of what was checked, and the faults found."""

    segments: int
    requests: int
    positions: int
    faults: tuple[Fault, ...]


def verify_samples(db: Database, place: SegmentPlace) -> Verified:
    """Read every segment whole, its digest and checksums included, and compare it with its index.

    Changes nothing; skips what a purge or a compaction moves meanwhile. Raises CannotDecrypt, PlaceUnreachable.
    """
    with db.session(read_only=True) as session:
        rows = list(session.scalars(select(SegmentRow).order_by(SegmentRow.created_at)))
    seen = requests = positions = 0
    faults = []
    for row in rows:
        reason = _fault(db, place, row)
        if reason is not None and _is_there(db, row.id):
            faults.append(Fault(row.id, place.show(row.path), reason))
        seen, requests, positions = seen + 1, requests + row.requests, positions + row.positions
    return Verified(seen, requests, positions, tuple(faults))


def _fault(db: Database, place: SegmentPlace, row: SegmentRow) -> str | None:
    try:
        found = read_whole(place, row)
    except FileNotFoundError:
        return "the file is missing"
    except SegmentDamaged as error:
        return str(error.facts["reason"])
    query = select(SampleRow.row, SampleRow.request_id, SampleRow.positions).where(SampleRow.segment_id == row.id)
    with db.session(read_only=True) as session:
        index = {number: (request_id, positions) for number, request_id, positions in session.execute(query)}
    if index != {number: (each.request_id, len(each)) for number, each in enumerate(found)}:
        return "it holds other requests than its index says"
    said, holds = (row.requests, row.positions), (len(found), sum(map(len, found)))
    return None if said == holds else f"its index says {said} requests and positions, it holds {holds}"


def _is_there(db: Database, segment_id: str) -> bool:
    with db.session(read_only=True) as session:
        return session.get(SegmentRow, segment_id) is not None
