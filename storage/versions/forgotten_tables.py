"""Deletion of stored n-gram tables when something is forgotten.

A table counts n-grams of many requests and names none, so its counts cannot be taken back. Every version born before
the newest line about forgetting is deleted: its files, in the store and in this machine's cache. Its row stays,
quarantined, so that lineage and numbers go on. Servers rebuild tables from stored requests
(``osd/drafters/ngram/service/refill.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage.records import VersionState
from storage.sql.database import Database
from storage.sql.forgotten import news_after
from storage.sql.ledger import get_row, lock_draft, note
from storage.sql.tables import VersionRow
from storage.versions.weight_place import WeightPlace

KIND = "ngram"
BORN, DROPPED = "born_after", "forgotten"
"""Keys of a version's evidence: the line it was born after, and why its files are gone."""


def born_after(evidence: Mapping[str, Any]) -> int:
    """Return the newest line about forgetting when the table began; 0 where an older release stored it."""
    return int(evidence.get(BORN, 0))


def drop_tables(db: Database, place: WeightPlace) -> list[str]:
    """Delete outdated tables and what killed processes left; return the ids of the versions deleted now. Idempotent.

    No older table comes after it: entering one checks the line (:func:`require_born_after_all`). Raises
    StoreWriteFailed, PlaceUnreachable.
    """
    columns = VersionRow.id, VersionRow.path, VersionRow.evidence
    with db.session(read_only=True) as session:
        line = news_after(session, 0).line
        tables = session.execute(select(*columns).where(VersionRow.kind == KIND).order_by(VersionRow.id)).all()
    dropped = []
    for version_id, path, evidence in tables:
        if DROPPED in evidence:
            place.uncache(path)  # another machine deleted it from the store alone
        elif born_after(evidence) < line:
            with db.session() as session:
                if _drop(session, place, version_id):
                    dropped.append(version_id)
    if tables:
        place.sweep(db)
    return dropped


def _drop(session: Session, place: WeightPlace, version_id: str) -> bool:
    """Delete a version's files and then its row's state: if the process dies in between, the next call finishes."""
    lock_draft(session, get_row(session, version_id).draft)
    row = get_row(session, version_id, lock=True)
    if DROPPED in row.evidence:
        return False
    place.remove(row.path)
    row.state = VersionState.QUARANTINED.value
    note(row, DROPPED, "requests were forgotten after it had begun to learn")
    return True
