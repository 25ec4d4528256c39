"""Entering of weights into the ledger, and publishing after the gate. Files and rows change under one lock on the
draft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from storage import records
from storage.errors import DatabaseUnreachable, StoreError, WrongState
from storage.files.files import TemporaryPath
from storage.records import DraftVersion, RunState, TrainingRun, VersionState
from storage.sql.database import Database
from storage.sql.drivers import insert_for, plain
from storage.sql.forgotten import BORN, TABLE_KIND, require_born_after_all
from storage.sql.ledger import (
    get_row,
    lock_draft,
    next_row,
    require_lease,
    require_same_root,
    require_state,
    root_of,
    to_record,
)
from storage.sql.tables import DraftRow, RunRow, VersionRow
from storage.versions import promotion, weights
from storage.versions.draft_choices import require_free
from storage.versions.targets import line_to_open
from storage.versions.weight_files import WeightFiles

OSD_FACTS = ("id", "draft", "number", "parent", "digest", "kind", "run_id", "created_at")
"""Columns that osd.json repeats, so that a folder explains itself without the database."""


def open_draft(db: Database, draft: str, digest: str, target: str | None) -> tuple[str, DraftVersion | None]:
    """Create the draft, or its line for the target, unless it exists; return the line and its root, if it has one.
    Raises StoreError for a root with other files."""
    with db.session() as session:
        new = insert_for(db.dialect)(DraftRow).values(name=draft, created_at=records.now(), target=target)
        session.execute(new.on_conflict_do_nothing())
        line = line_to_open(session, draft, target)
        root = root_of(session, line)
        return line, None if root is None else require_same_root(root, digest)


def enter(
    db: Database,
    files: WeightFiles,
    draft: str,
    aside: TemporaryPath,
    facts: Mapping[str, Any],
    provenance: Mapping[str, Any],
    born: int | None = None,
) -> DraftVersion:
    """Seal a folder that was written aside and give it its number, its name and its row.

    Without a parent it is the draft's root: READY at once. ``born`` is for n-gram tables, see
    :mod:`storage.sql.forgotten`. Raises StoreWriteFailed, ForgottenSince, StoreError.
    """
    digest = weights.seal(aside.path)
    is_root, key = facts["parent"] is None, records.new_id()
    with files.entering(aside, draft, key) as put, db.session() as session:
        owner = lock_draft(session, draft)
        if is_root and (root := root_of(session, draft)):  # another process was faster
            return require_same_root(root, digest)
        row = next_row(session, draft, digest, VersionState.READY if is_root else VersionState.CANDIDATE, facts)
        row.path = files.path(draft, row.id, key)
        row.bytes = sum(path.stat().st_size for path in weights.weight_files(aside.path))
        row.has_master = weights.has_master(aside.path)
        if row.kind == TABLE_KIND:
            row.evidence = {BORN: require_born_after_all(session, f"The table {draft}", born)}
        session.add(row)
        session.flush()
        _explain(aside.path, row, provenance)
        put(row.path)
        if is_root and owner.current_version is None:
            promotion.set_current(session, owner, row.id)
        return to_record(row)


def _explain(folder: Path, row: VersionRow, provenance: Mapping[str, Any]) -> None:
    facts = {name: getattr(row, name) for name in OSD_FACTS}
    weights.write_provenance(folder, {**facts, "provenance": provenance})
    if row.parent is None:
        weights.mark_ready(folder)


def publish(
    db: Database, files: WeightFiles, version: DraftVersion, evidence: Mapping[str, Any], run: TrainingRun
) -> DraftVersion:
    """Publish a version with verified files, see :meth:`storage.versions.versions.VersionLedger.publish`."""
    with _unmarked_on_error(files, version.path), db.session() as session:
        draft = lock_draft(session, run.draft)
        row = get_row(session, version.id, lock=True)
        if _is_published_by(session, row, run):
            return to_record(row)
        claimed = require_lease(session, run)
        require_free(draft)
        require_state(row, "publishing", VersionState.CANDIDATE)
        _require_candidate_of(row, run, draft)
        row.state, row.evidence = VersionState.READY.value, plain(evidence)
        promotion.set_current(session, draft, row.id)
        claimed.state, claimed.version, claimed.finished_at = RunState.PUBLISHED.value, row.id, records.now()
        session.flush()
        files.mark(version.path)
        return to_record(row)


def _is_published_by(session: Session, row: VersionRow, run: TrainingRun) -> bool:
    known = session.get(RunRow, run.id)
    return known is not None and known.state == RunState.PUBLISHED.value and known.version == row.id


def _require_candidate_of(row: VersionRow, run: TrainingRun, draft: DraftRow) -> None:
    if row.run_id != run.id:
        needed = f"one of run {run.id}"
        raise WrongState(version=row.id, state=f"of run {row.run_id}", action="publishing", needed=needed)
    if row.parent != draft.current_version:
        needed = f"a child of the current version {draft.current_version}"
        raise WrongState(version=row.id, state=f"trained from {row.parent}", action="publishing", needed=needed)


@contextmanager
def _unmarked_on_error(files: WeightFiles, path: str) -> Iterator[None]:
    """Remove the READY marker when the transaction fails, unless the database went away in mid-commit."""
    was_marked = files.is_marked(path)
    try:
        yield
    except DatabaseUnreachable:
        raise
    except StoreError:
        if not was_marked:
            files.unmark(path)
        raise
