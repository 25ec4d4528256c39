"""Deletion of versions' weights: by ``[retention.versions]``, and by hand.

The row is marked first and the files go after it, so that nothing is promised that is not there; what a process that
dies in between leaves is swept. The row with its lineage and evidence stays.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage import records
from storage.errors import WrongState
from storage.records import DraftVersion
from storage.settings import VersionLimits
from storage.sql import audit
from storage.sql.database import Database
from storage.sql.leases import lock_draft
from storage.sql.ledger import get_row, require_weights, to_record
from storage.sql.tables import DraftRow, VersionRow
from storage.versions.ending import doomed, why_kept, with_weights
from storage.versions.weight_place import WeightPlace

Ended = list[tuple[DraftVersion, str]]


@dataclass(frozen=True, slots=True)
class EndedVersions:
    """The versions whose weights were deleted."""

    versions: tuple[str, ...]
    bytes: int
    by_rule: dict[str, int]
    """Policy -> number of versions that it ended."""


class VersionKeeper:
    """Deletes weights of versions in ``place``."""

    def __init__(self, db: Database, place: WeightPlace) -> None:
        self._db, self._place = db, place

    def retain(self, limits: VersionLimits, *, dry: bool = False) -> EndedVersions:
        """Delete the weights that the policies end, and float32 ones that no run goes on from; ``dry`` only counts.

        Raises StoreWriteFailed, PlaceUnreachable.
        """
        with self._db.session(read_only=True) as session:
            drafts = list(session.scalars(select(DraftRow.name).order_by(DraftRow.name)))
        found = [one for draft in drafts for one in self._of_draft(draft, limits, dry=dry)]
        rules, size = Counter(rule for _, rule in found), sum(version.bytes or 0 for version, _ in found)
        return EndedVersions(tuple(version.id for version, _ in found), size, dict(rules))

    def delete(self, version: DraftVersion) -> DraftVersion:
        """Delete a version's weights, by hand. Raises WrongState for one whose weights always stay, WeightsDamaged for
        one that has none any more."""
        with self._db.session() as session:
            draft = lock_draft(session, version.draft)
            row = get_row(session, version.id, lock=True)
            require_weights(row)
            if why := why_kept(session, draft, with_weights(session, draft.name)).get(row.id):
                raise WrongState(version=row.id, state=why, action="deleting", needed="one that nothing rests on")
            row.deleted_at = records.now()
            ended = to_record(row)
            audit.note(session, "drafts delete", row.id, {"bytes": row.bytes}, {"state": row.state})
        self._place.remove(ended.path)
        return ended

    def _of_draft(self, draft: str, limits: VersionLimits, *, dry: bool) -> Ended:
        """Return a draft's versions that end, with the policy."""
        with self._db.session(read_only=True) as session:
            owner = session.get_one(DraftRow, draft)
            ending = doomed(session, owner, limits, records.now())
            masters = _spare_masters(session, owner)
            if dry or not (ending or masters):
                return [(to_record(get_row(session, version)), rule) for version, rule in ending.items()]
        with self._db.session() as session:
            owner = lock_draft(session, draft)
            ending = doomed(session, owner, limits, records.now())
            ended: Ended = [(self._end(session, version), rule) for version, rule in ending.items()]
            masters = _spare_masters(session, owner)
            for row in masters:
                row.has_master = False
            paths = [row.path for row in masters]
        for version, _ in ended:
            self._place.remove(version.path)
        for path in paths:
            self._place.remove_master(path)
        return ended

    @staticmethod
    def _end(session: Session, version: str) -> DraftVersion:
        row = get_row(session, version, lock=True)
        row.deleted_at = records.now()
        return to_record(row)


def _spare_masters(session: Session, draft: DraftRow) -> list[VersionRow]:
    """Return the versions whose float32 weights no run goes on from: all but the current and the newest."""
    rows = with_weights(session, draft.name)
    newest = max((row.number for row in rows), default=0)
    return [row for row in rows if row.has_master and row.number != newest and row.id != draft.current_version]
