"""Retention and compaction of segments, and verification that segments and index agree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage import records
from storage.errors import SegmentDamaged
from storage.records import RunState
from storage.replay.purge import NOTHING, Purged, Purger, SegmentMoved
from storage.replay.retention import IndexedRequest, decide
from storage.replay.segment_files import SegmentFiles
from storage.settings import RetentionSettings
from storage.sql.database import Database
from storage.sql.tables import RunRow, SampleRow, SegmentRow

JUDGED = (RunState.PUBLISHED.value, RunState.REJECTED.value)

COLUMNS = (
    SampleRow.request_id, SampleRow.route, SampleRow.tenant, SampleRow.created_at, SampleRow.bytes,
    SampleRow.prompt_hash, SampleRow.divergence, SampleRow.holdout, SampleRow.claimed_by,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Retained:
    """The result of applying retention."""

    purged: Purged
    by_rule: dict[str, int]
    """Policy -> number of requests that it ended."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction."""

    before: int
    """Segments before the merge."""
    after: int
    """Segments after the merge."""
    bytes: int
    """Disk space freed in bytes; negative where the new segments are larger."""


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


class RetentionKeeper:
    """Applies retention and compaction to segments, and verifies them."""

    def __init__(self, db: Database, files: SegmentFiles) -> None:
        self._db, self._files = db, files
        self._purger = Purger(db, files)

    def retain(self, settings: RetentionSettings, *, dry: bool = False) -> Retained:
        """Delete what the policies say; ``dry`` only counts. Requests of a run under way stay until it has ended.

        Raises SegmentDamaged after everything readable was dealt with.
        """
        if settings.keeps_all:
            return Retained(NOTHING, {})
        doomed = decide(self._db.read(_index), settings, records.now())
        purged = NOTHING if dry or not doomed else self._purger.purge_requests(list(doomed), spare_claimed=True)
        return Retained(purged, dict(Counter(doomed.values())))

    def compact(self, most: int) -> Compacted:
        """Merge segments of at most ``most`` / 2 requests, neighbours in time, into ones of at most ``most``.

        Readers find either the old segments or the new. Raises SegmentDamaged.
        """
        total = Compacted(0, 0, 0)
        for group in self._groups(most):
            try:
                freed = self._merge(group)
            except (SegmentMoved, FileNotFoundError):
                continue  # a purge was faster; the next compaction sees the present state
            total = Compacted(total.before + len(group), total.after + 1, total.bytes + freed)
        return total

    def _groups(self, most: int) -> list[list[SegmentRow]]:
        small = select(SegmentRow).where(SegmentRow.requests <= most // 2).order_by(SegmentRow.created_at)
        groups: list[list[SegmentRow]] = [[]]
        with self._db.session(read_only=True) as session:
            for row in session.scalars(small):
                if sum(each.requests for each in groups[-1]) + row.requests > most:
                    groups.append([])
                groups[-1].append(row)
        return [group for group in groups if len(group) > 1]

    def _merge(self, group: list[SegmentRow]) -> int:
        """Merge a group of segments; return the bytes freed."""
        batch = [one for row in group for one in self._files.read(row.id, row.path)]
        size = self._purger.replace(group, batch)
        for row in group:
            self._files.place.remove(row.path)
        return sum(row.bytes for row in group) - size

    def verify(self) -> Verified:
        """Read every segment whole, its digest and checksums included, and compare it with its index.

        Changes nothing; skips what a purge or a compaction moves meanwhile. Raises CannotDecrypt, PlaceUnreachable.
        """
        rows = self._db.scalars(select(SegmentRow).order_by(SegmentRow.created_at))
        seen = requests = positions = 0
        faults = []
        for row in rows:
            reason = self._fault(row)
            if reason is not None and self._is_there(row.id):
                faults.append(Fault(row.id, self._files.place.show(row.path), reason))
            seen, requests, positions = seen + 1, requests + row.requests, positions + row.positions
        return Verified(seen, requests, positions, tuple(faults))

    def _fault(self, row: SegmentRow) -> str | None:
        try:
            found = self._files.read_whole(row)
        except FileNotFoundError:
            return "the file is missing"
        except SegmentDamaged as error:
            return str(error.facts["reason"])
        query = select(SampleRow.row, SampleRow.request_id, SampleRow.positions).where(SampleRow.segment_id == row.id)
        index = {number: (request_id, positions) for number, request_id, positions in self._db.rows(query)}
        if index != {number: (each.request_id, len(each)) for number, each in enumerate(found)}:
            return "it holds other requests than its index says"
        said, holds = (row.requests, row.positions), (len(found), sum(map(len, found)))
        return None if said == holds else f"its index says {said} requests and positions, it holds {holds}"

    def _is_there(self, segment_id: str) -> bool:
        with self._db.session(read_only=True) as session:
            return session.get(SegmentRow, segment_id) is not None


def _index(session: Session) -> list[IndexedRequest]:
    """Return every stored request, as the policies see it."""
    busy: set[str] = set()
    live = select(RunRow.request_ids, RunRow.replayed).where(RunRow.state == RunState.CLAIMED.value)
    for claimed, replayed in session.execute(live):
        busy.update(claimed, replayed)
    judged = set(session.scalars(select(RunRow.id).where(RunRow.state.in_(JUDGED))))
    return [
        IndexedRequest(
            request_id=row.request_id, route=row.route, tenant=row.tenant, created_at=row.created_at, bytes=row.bytes,
            prompt_hash=row.prompt_hash, divergence=row.divergence, holdout=row.holdout,
            under_way=row.request_id in busy, learned=row.claimed_by in judged,
        )
        for row in session.execute(select(*COLUMNS))
    ]  # fmt: skip
