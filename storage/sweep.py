"""Finding what a killed process left behind: files of ours that no row refers to and no live process holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from storage.database import Database
from storage.files import ASIDE, remove, seized, size_of, writing
from storage.tables import SegmentRow, VersionRow

SEGMENT = re.compile(r"[0-9a-f]{32}\.parquet")
VERSION = re.compile(r".+-\d{6}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Swept:
    """A file or folder that was removed."""

    path: Path
    bytes: int


def sweep_segments(db: Database, folder: Path) -> list[Swept]:
    """Remove orphaned segments and those that were never finished."""

    def is_indexed(path: str) -> bool:
        with db.session(read_only=True) as session:
            return session.scalar(select(SegmentRow.id).where(SegmentRow.path == path)) is not None

    found = list(_candidates(folder, SEGMENT))
    with db.session(read_only=True) as session:
        known = set(session.scalars(select(SegmentRow.path)))  # nearly all of them: only the rest is looked at closely
    rest = [path for path in found if path.relative_to(folder).as_posix() not in known]
    return [swept for path in rest if (swept := _sweep_one(folder, path, is_indexed))]


def sweep_weights(db: Database, folder: Path) -> list[Swept]:
    """Remove weights of versions that were never entered in the ledger."""

    def is_known(path: str) -> bool:
        with db.session(read_only=True) as session:
            return session.scalar(select(VersionRow.id).where(VersionRow.path == path)) is not None

    return [swept for path in _candidates(folder, VERSION) if (swept := _sweep_one(folder, path, is_known))]


def _candidates(folder: Path, ours: re.Pattern[str]) -> Iterator[Path]:
    """Files of ours, one folder deep; others are left alone."""
    for path in sorted(folder.glob("*/*")) + sorted(folder.glob("*/.*")):
        if ours.fullmatch(path.name) or (path.name.startswith(".") and path.name.endswith(ASIDE)):
            yield path


def _sweep_one(folder: Path, path: Path, is_known: Callable[[str], bool]) -> Swept | None:
    """The index is asked only once the file is seized: its writer, if it lived, has committed by then."""
    with seized(path) as free, writing(path):
        if not free or is_known(path.relative_to(folder).as_posix()):
            return None
        try:
            swept = Swept(path, size_of(path))
        except FileNotFoundError:  # a purge that dropped it from the index has just deleted it
            return None
        remove(path)
    return swept
