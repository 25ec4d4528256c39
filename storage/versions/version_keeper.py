"""Deletion of versions' weights: by ``[retention.versions]``, and by hand.

The row is marked first and the files go after it, so that nothing is promised that is not there; what a process that
dies in between leaves is swept. The row stays: lineage, evidence and the trail refer to it. Weights that always stay:
number 0, the current version and the one before it, what servers draft with, canaries with what the others serve
meanwhile, what people hold or gave a name, what a run under way starts from, and the newest versions, from which
training may go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage import records
from storage.errors import WrongState
from storage.records import DraftVersion, RunState, VersionState
from storage.settings import VersionLimits
from storage.sql import audit
from storage.sql.database import Database
from storage.sql.ledger import get_row, lock_draft, require_weights, to_record
from storage.sql.tables import CanaryRow, DraftRow, RunRow, ServingRow, VersionAliasRow, VersionRow
from storage.versions.draft_choices import hold_of
from storage.versions.promotion import WATCHING
from storage.versions.weight_files import WeightFiles

Rule = Literal["served", "age", "bytes"]
Rows = Sequence[VersionRow]


def doomed(session: Session, draft: DraftRow, limits: VersionLimits, now: float) -> dict[str, Rule]:
    """Return version -> the policy that ends it, of a locked draft."""
    rows = with_weights(session, draft.name)
    stay = why_kept(session, draft, rows)
    ended: dict[str, Rule] = {}
    if limits.served != "all":
        lately = served_lately(rows, draft.current_version, limits.served)
        ended |= {row.id: "served" for row in rows if row.id not in lately and row.id not in stay}
    if limits.age_seconds is not None:
        old = [row for row in rows if row.created_at < now - limits.age_seconds and row.id not in stay]
        ended |= {row.id: "age" for row in old if row.id not in ended}
    if limits.bytes is not None:
        left = [row for row in rows if row.id not in ended]
        ended |= {row.id: "bytes" for row in too_many(left, stay, limits.bytes)}
    return ended


def with_weights(session: Session, draft: str) -> Rows:
    """Return a draft's versions whose weights are there."""
    return session.scalars(select(VersionRow).where(VersionRow.draft == draft, VersionRow.deleted_at.is_(None))).all()


def why_kept(session: Session, draft: DraftRow, rows: Rows) -> dict[str, str]:
    """Return version -> why its weights stay whatever the limits say, for a message."""
    kept = dict.fromkeys(_goes_on(session, draft, rows), "among the newest, from which training may go on")
    kept |= {row.id: "not judged yet" for row in rows if row.state == VersionState.CANDIDATE.value}
    runs = select(RunRow.parent).where(RunRow.draft == draft.name, RunRow.state == RunState.CLAIMED.value)
    kept |= dict.fromkeys(session.scalars(runs), "what a run under way starts from")
    tried = select(CanaryRow.version, CanaryRow.base).where(CanaryRow.draft == draft.name, CanaryRow.state == WATCHING)
    for version, base in session.execute(tried):
        kept |= {version: "tried by a server", base: "served while another is tried"}
    served = select(ServingRow.version).where(ServingRow.draft == draft.name)
    kept |= dict.fromkeys(session.scalars(served), "what a server drafts with")
    if draft.previous_version:
        kept[draft.previous_version] = "the version before the current one"
    for alias in session.scalars(select(VersionAliasRow).where(VersionAliasRow.draft == draft.name)):
        kept[alias.version] = f"called {alias.name}"
    if hold := hold_of(draft):
        kept[hold.version] = hold.kind.value
    if draft.current_version:
        kept[draft.current_version] = "the current version"
    return kept | {row.id: "number 0" for row in rows if row.number == 0}


def _goes_on(session: Session, draft: DraftRow, rows: Rows) -> set[str]:
    """Return what training may go on from: the newest version, and the newest that a run has judged, which is another
    where a run was stopped after it."""
    judged = RunRow.state.in_([RunState.PUBLISHED.value, RunState.REJECTED.value]) & RunRow.version.is_not(None)
    last = select(RunRow.version).where(RunRow.draft == draft.name, judged).order_by(RunRow.started_at.desc()).limit(1)
    newest = max(rows, key=lambda row: row.number, default=None)
    return {version for version in (newest and newest.id, session.scalar(last)) if version}


def served_lately(rows: Rows, current: str | None, count: int) -> set[str]:
    """Return the current version and its ancestors, back to the last ``count`` that served before it."""
    known: Mapping[str, VersionRow] = {row.id: row for row in rows}
    found, between, row = set[str](), list[str](), known.get(current or "")
    if row is not None:
        found.add(row.id)
    while count and row is not None and row.parent is not None:
        row = known.get(row.parent)
        if row is not None:
            between.append(row.id)
            if row.served_at is not None:
                found.update(between)
                count -= 1
    return found


def too_many(rows: Rows, stay: Mapping[str, str], limit: int) -> list[VersionRow]:
    """Return the oldest versions that may go, as many as it takes to fit into ``limit`` bytes."""
    over = sum(row.bytes or 0 for row in rows) - limit
    ended = []
    for row in sorted(rows, key=lambda row: row.number):
        if over <= 0:
            break
        if row.id not in stay:
            ended.append(row)
            over -= row.bytes or 0
    return ended


Ended = list[tuple[DraftVersion, str]]


@dataclass(frozen=True, slots=True)
class EndedVersions:
    """The versions whose weights were deleted."""

    versions: tuple[str, ...]
    bytes: int
    by_rule: dict[str, int]
    """Policy -> number of versions that it ended."""


class VersionKeeper:
    """Deletes weights of versions."""

    def __init__(self, db: Database, files: WeightFiles) -> None:
        self._db, self._files = db, files

    def retain(self, limits: VersionLimits, *, dry: bool = False) -> EndedVersions:
        """Delete the weights that the policies end, and float32 ones that no run goes on from; ``dry`` only counts.

        Raises StoreWriteFailed, PlaceUnreachable.
        """
        drafts = self._db.scalars(select(DraftRow.name).order_by(DraftRow.name))
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
        self._files.remove(ended.path)
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
            self._files.remove(version.path)
        for path in paths:
            self._files.remove_master(path)
        return ended

    @staticmethod
    def _end(session: Session, version: str) -> DraftVersion:
        row = get_row(session, version, lock=True)
        row.deleted_at = records.now()
        return to_record(row)


def _spare_masters(session: Session, draft: DraftRow) -> list[VersionRow]:
    """Return the versions whose float32 weights no run goes on from."""
    rows = with_weights(session, draft.name)
    stay = {*_goes_on(session, draft, rows), draft.current_version}
    return [row for row in rows if row.has_master and row.id not in stay]
