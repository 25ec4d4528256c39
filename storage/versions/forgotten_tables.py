"""Stored tables of n-grams when something is forgotten: they go.

A table counts what many requests said and names none of them, so nobody can tell whether one learned from what was
forgotten, and its counts cannot be taken back. Every version that was born before the newest line about forgetting is
deleted: its files, in the store and in this machine's cache; its row stays, quarantined, so that lineage and numbers go
on. Servers make tables anew from the requests that are kept (``osd/drafters/ngram/service/refill.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage.records import VersionState
from storage.replay.forgotten import news_after
from storage.sql.database import Database
from storage.sql.leases import lock_draft
from storage.sql.ledger import get_row, note
from storage.sql.tables import VersionRow
from storage.versions.weight_place import WeightPlace

KIND = "ngram"
BORN, DROPPED = "born_after", "forgotten"
"""In a version's evidence: the line that it was born after, and why it has no files any more."""


def born_after(evidence: Mapping[str, Any]) -> int:
    """The newest line of the trail about forgetting when the table began; 0 where a release before this kept it."""
    return int(evidence.get(BORN, 0))


def drop_tables(db: Database, place: WeightPlace) -> list[str]:
    """Delete what must go, and what killed processes left; returns the ids of the versions that were deleted now.
    Doing it again is fine.

    No older table comes after it: whoever enters one looks for the line (:func:`require_born_after_all`). Raises
    StoreWriteFailed, PlaceUnreachable.
    """
    columns = VersionRow.id, VersionRow.path, VersionRow.evidence
    with db.session(read_only=True) as session:
        line = news_after(session, 0).line
        tables = session.execute(select(*columns).where(VersionRow.kind == KIND).order_by(VersionRow.id)).all()
    dropped = []
    for version_id, path, evidence in tables:
        if DROPPED in evidence:
            place.uncache(path)  # on another machine it was deleted from the store only
        elif born_after(evidence) < line:
            with db.session() as session:
                if _drop(session, place, version_id):
                    dropped.append(version_id)
    if tables:
        place.sweep(db)
    return dropped


def _drop(session: Session, place: WeightPlace, version_id: str) -> bool:
    """Its files and then its row: should the process die between the two, the next one does it again."""
    lock_draft(session, get_row(session, version_id).draft)
    row = get_row(session, version_id, lock=True)
    if DROPPED in row.evidence:
        return False
    place.remove(row.path)
    row.state = VersionState.QUARANTINED.value
    note(row, DROPPED, "requests were forgotten after it had begun to learn")
    return True
