"""The replay store: what finished requests store for learning.

A batch is acknowledged once its segment is on the disk and its index is committed; a crash before that leaves files
that nothing refers to, which :meth:`SampleStore.sweep` deletes. Stored samples never change; only their index
does (:mod:`storage.replay.sample_index`): training runs claim them, and their route may be renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, bindparam, insert, select
from sqlalchemy.orm import Session

from storage.access.tenants import TenantLedger, usable_for
from storage.errors import BadInput, SegmentDamaged, StoreError
from storage.files.places import LocalFolder, Swept
from storage.records import RequestSamples
from storage.redaction import Redacted, Redactor
from storage.replay import reservoir, sample_index
from storage.replay.exports import Exported, ImportResult, read_export, write_export
from storage.replay.purge import Purged, Purger, sweep_segments
from storage.replay.sample_index import ReplayStats, Waiting, routed_to
from storage.replay.segment_files import NewSegment, SegmentFiles
from storage.routes.route_names import under_present_names
from storage.settings import EVERYTHING, PrivacySettings
from storage.sql.database import Database, chunks
from storage.sql.forgotten import Finished, forgotten, take_turns
from storage.sql.tables import SampleRow, SegmentRow, table_of
from storage.versions.targets import about

INDEX = table_of(SampleRow)
SEGMENTS_OF = select(INDEX.c.request_id, INDEX.c.segment_id).where(
    INDEX.c.request_id.in_(bindparam("ids", expanding=True))
)


class ForgottenRequest(StoreError):
    """{reason}"""


class SampleStore:
    """Segments and their index in the database."""

    def __init__(
        self, db: Database, files: SegmentFiles, holdout: float, privacy: PrivacySettings = EVERYTHING
    ) -> None:
        self._db = db
        self.files = files
        self._holdout = holdout
        self._privacy = privacy
        self.tenants = TenantLedger(db, privacy)
        self.redactor = Redactor(privacy.redact)

    @property
    def folder(self) -> Path:
        """The local folder of the segments. Raises StoreError when they are in an object store."""
        place = self.files.place
        if not isinstance(place, LocalFolder):
            raise StoreError(reason=f"Samples are kept at {place.show()}, in no folder of this machine.")
        return place.folder

    def add(self, batch: Sequence[RequestSamples]) -> str | None:
        """Store a batch in one segment and return the segment's id; None when nothing was to be stored.

        Requests are stored as the redaction hook leaves them; it has seen those in a ``Redacted`` batch. Requests of
        tenants that do not allow storing, and forgotten ones, are skipped. A request that is stored already
        is left as it is, so a batch may be added again after an error; when all of it is, the id is that of the segment
        with the first. Raises BadInput, StoreError, StoreWriteFailed.
        """
        if not batch:
            raise BadInput(reason="An empty batch makes no segment.")
        batch = self.redactor(batch)
        learnable = self.tenants.learnable({samples.tenant for samples in batch})
        batch = [samples for samples in batch if samples.tenant in learnable]
        if not batch:
            return None
        kept = self._segments_of([samples.request_id for samples in batch])
        fresh = list({samples.request_id: samples for samples in batch if samples.request_id not in kept}.values())
        if not fresh:
            return kept[batch[0].request_id]
        while fresh:
            try:
                return self.files.write(fresh, partial(self._index, batch=fresh))
            except ForgottenRequest:
                fresh = self.without_forgotten(fresh)
        return None

    def without_forgotten(self, batch: Sequence[RequestSamples]) -> list[RequestSamples]:
        """Return the requests not named as forgotten in the audit trail, which is written before they are deleted."""
        gone = self._db.read(forgotten, map(_finished, batch))
        return [samples for samples in batch if samples.request_id not in gone]

    def _index(self, new: NewSegment, batch: list[RequestSamples]) -> None:
        with self._db.session() as session:
            take_turns(session)
            if forgotten(session, map(_finished, batch)):
                raise ForgottenRequest(reason="some of it was forgotten")
            named = under_present_names(session, batch)
            new.enter(session)
            row = partial(sample_index.row_of, holdout=self._holdout)
            session.execute(insert(INDEX), list(map(row, new.requests, named, sample_index.divergences(named))))

    def read(self, request_ids: Sequence[str]) -> list[RequestSamples]:
        """Return the samples of these requests in the order asked, skipping purged and unknown ones.

        Route, target and time are those of the index, which a renaming, an adoption and a claim change. Raises
        SegmentDamaged for a segment that is not what was written.
        """
        found: dict[str, RequestSamples] = {}
        gone = self._read_into(found, request_ids)
        while gone:  # moved by a purge or a compaction, perhaps more than once
            again = self._read_into(found, list(gone))
            if still := again.items() & gone.items():
                raise self._missing(still.pop()[1])
            gone = again
        return [found[request_id] for request_id in request_ids if request_id in found]

    def _read_into(self, found: dict[str, RequestSamples], request_ids: Sequence[str]) -> dict[str, str]:
        """Add readable requests to ``found``; return request -> segment for files that a purge replaced meanwhile."""
        gone: dict[str, str] = {}
        for (segment_id, path), group in groupby(self._places(request_ids), key=lambda place: place[:2]):
            places = list(group)
            try:
                rows = self.files.read(segment_id, path)
                found.update({place[3]: _as_indexed(rows[place[2]], *place[4:]) for place in places})
            except FileNotFoundError:
                gone.update({place[3]: segment_id for place in places})
        return gone

    def _places(self, request_ids: Sequence[str]) -> Iterator[tuple[str, str, int, str, str, str | None, float]]:
        """Yield (segment id, path, row, request id, route, target, created), a segment's rows together."""
        columns = (
            SegmentRow.id, SegmentRow.path, SampleRow.row, SampleRow.request_id, SampleRow.route, SampleRow.target,
            SampleRow.created_at,
        )  # fmt: skip
        query = select(*columns).join_from(SampleRow, SegmentRow, SampleRow.segment_id == SegmentRow.id)
        places: list[Any] = []
        with self._db.session(read_only=True) as session:
            for ids in chunks(request_ids):
                places += session.execute(query.where(SampleRow.request_id.in_(ids)))
        return iter(sorted(places))

    def _missing(self, segment_id: str) -> SegmentDamaged:
        with self._db.session(read_only=True) as session:
            row = session.get(SegmentRow, segment_id)
        return self.files.damaged(segment_id, row.path if row else "")

    def kept(self, request_ids: Sequence[str]) -> set[str]:
        """Return which of the requests are stored."""
        return set(self._segments_of(request_ids))

    def _segments_of(self, request_ids: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        with self._db.session(read_only=True) as session:
            for ids in chunks(request_ids):
                found.update({row[0]: row[1] for row in session.execute(SEGMENTS_OF, {"ids": ids})})
        return found

    def recent(self, draft: str | None = None, *, limit: int, candidate: bool = False, **conditions: Any) -> list[str]:
        """Return ids of the newest requests, newest first, that meet the conditions of
        :func:`storage.replay.sample_index.meeting`.

        ``draft`` selects those of its routes (``candidate``: of those that it might serve) that are about its target,
        may train it and were not set aside.
        """
        wanted = sample_index.meeting(**conditions)
        newest = SampleRow.created_at.desc(), SampleRow.request_id
        with self._db.session(read_only=True) as session:
            if draft is not None:
                wanted += self._teaching(session, draft, candidate)
            return list(session.scalars(select(SampleRow.request_id).where(*wanted).order_by(*newest).limit(limit)))

    def spread(self, draft: str, *, limit: int, seed: str, candidate: bool = False, **conditions: Any) -> list[str]:
        """Return ids of requests as :meth:`recent` does, but a sample of all of them, even over routes and age, that
        ``seed`` draws (:mod:`storage.replay.reservoir`)."""
        with self._db.session(read_only=True) as session:
            wanted = sample_index.meeting(**conditions) + self._teaching(session, draft, candidate)
            return reservoir.draw(session, wanted, limit, seed)

    def _teaching(self, session: Session, draft: str, candidate: bool) -> list[ColumnElement[bool]]:
        """Return SQL conditions for the requests that a draft may learn from."""
        usable = usable_for(session, draft, self._privacy) & routed_to(session, draft, candidate=candidate)
        return [usable, about(session, draft), SampleRow.set_aside.is_(None)]

    def waiting(self, draft: str) -> Waiting:
        """Return how much a training run of this draft would claim now."""
        with self._db.session(read_only=True) as session:
            usable = usable_for(session, draft, self._privacy) & about(session, draft)
            return sample_index.waiting(session, draft, usable)

    def stats(self) -> list[ReplayStats]:
        """Return the totals of stored requests, route by route."""
        return self._db.read(sample_index.stats)

    def purge(self, **conditions: Any) -> Purged:
        """Delete samples that meet every condition given, for good. See :meth:`storage.replay.purge.Purger.purge`."""
        return Purger(self._db, self.files).purge(**conditions)

    def export(self, path: Path, *, overwrite: bool = False, **conditions: Any) -> Exported:
        """Write stored requests that meet the conditions of :func:`storage.replay.sample_index.meeting`, oldest first,
        into one Parquet file in the format of :mod:`storage.replay.segments`.

        It is encrypted where segments are. Raises BadInput when the file exists and ``overwrite`` is not given.
        """
        wanted = sample_index.meeting(**conditions)
        query = select(SampleRow.request_id).where(*wanted).order_by(SampleRow.created_at, SampleRow.request_id)
        ids = self._db.scalars(query)
        return write_export(Path(path), map(self.read, chunks(ids, 64)), self.files.cipher, overwrite=overwrite)

    def import_file(self, path: Path) -> ImportResult:
        """Store every request of an exported file under its own id, route and tenant; known ones stay as they are.

        The file is read to its end before the first request is stored. Raises BadExport for a file that is missing,
        damaged, not an export, or of a newer format; StoreError.
        """
        for _ in read_export(path, self.files.cipher):
            pass
        return self.add_counted(map(Redacted, read_export(path, self.files.cipher)))

    def add_counted(self, batches: Iterable[list[RequestSamples]]) -> ImportResult:
        """Store batches and count what was not there before."""
        requests = positions = known = 0
        for given in batches:
            batch = self.redactor(given)
            ids = [each.request_id for each in batch]
            before = self.kept(ids)
            if batch:
                self.add(batch)
            fresh = self.kept(ids) - before
            requests, known = requests + len(fresh), known + len(given) - len(fresh)
            positions += sum(len(each) for each in batch if each.request_id in fresh)
        return ImportResult(requests, positions, known)

    def sweep(self) -> list[Swept]:
        """Delete what killed processes left and nothing refers to; return what was deleted."""
        return sweep_segments(self._db, self.files.place)


def _as_indexed(samples: RequestSamples, route: str, target: str | None, created: float) -> RequestSamples:
    same = (samples.route, samples.target, samples.created_at) == (route, target, created)
    return samples if same else replace(samples, route=route, target=target, created_at=created)


def _finished(samples: RequestSamples) -> Finished:
    return Finished(samples.request_id, samples.tenant, samples.created_at)
