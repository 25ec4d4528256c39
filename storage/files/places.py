"""Places of files: a local folder here, a folder of an object store in :mod:`storage.files.bucket`.

In a folder, a lock that dies with the process tells a sweep which files are in use. An object store has none, so there
the index itself decides.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from storage import records
from storage.files.files import ASIDE, TemporaryPath, remove, seized, size_of, taken_back_on_error, writing

GRACE_SECONDS = 3600.0
"""Age in seconds below which objects are left alone, as they may be being entered. Safety does not rest on it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file or an object that a listing found."""

    path: str
    """Path below the place, parts separated by /."""
    bytes: int
    modified: datetime
    """Time of modification by the store's clock, with a time zone."""

    @property
    def is_old(self) -> bool:
        """Whether it is too old for a live process to be entering it."""
        return self.modified.timestamp() < records.now() - GRACE_SECONDS


@dataclass(frozen=True, slots=True)
class Swept:
    """A file or folder that was deleted."""

    path: Path | str
    bytes: int


Sweep = list[Swept]


class FilePlace(Protocol):
    """A folder in which files are kept. Paths are relative to it, parts separated by /.

    All of it raises StoreWriteFailed or PlaceUnreachable.
    """

    def holding(self, path: str, data: memoryview) -> AbstractContextManager[None]:
        """Write a file whole and hold it until the context ends; an OsdError there deletes it.

        It stays when the database went away in mid-commit: then only a sweep can tell.
        """

    def require(self, path: str) -> None:
        """Raise StoreError when a sweep took the file before it was entered."""

    def source(self, path: str) -> Any:
        """Return a path, or a buffer, from which Arrow reads. Raises FileNotFoundError."""

    def get(self, path: str) -> bytes:
        """Return a file's bytes. Raises FileNotFoundError."""

    def get_file(self, path: str, target: Path) -> None:
        """Copy a file to this machine. Raises FileNotFoundError."""

    def put_file(self, source: Path, path: str) -> None:
        """Copy a file of this machine here."""

    def exists(self, path: str) -> bool:
        """Return whether there is such a file."""

    def list(self, folder: str = "") -> list[Found]:
        """Return every file below a folder, in order of name."""

    def remove(self, path: str) -> None:
        """Delete a file; does nothing when it is not there."""

    def show(self, path: str = "") -> Path | str:
        """Return a path's name for messages."""


class LocalFolder:
    """A local folder: what is written there is written aside, synced and renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def holding(self, path: str, data: memoryview) -> Iterator[None]:
        """Write a file aside, sync it and rename it; its lock is held meanwhile."""
        target = self.folder / path
        with TemporaryPath(target.parent, target.name) as aside:
            aside.write(data)
            aside.rename(target)
            with taken_back_on_error(aside):
                yield

    def require(self, path: str) -> None:
        """Do nothing: the file is locked, so it is there."""

    def source(self, path: str) -> Path:
        """Return the path of a file."""
        return self.folder / path

    def get(self, path: str) -> bytes:
        """Return a file's bytes."""
        return (self.folder / path).read_bytes()

    def get_file(self, path: str, target: Path) -> None:
        """Copy a file."""
        shutil.copyfile(self.folder / path, target)

    def put_file(self, source: Path, path: str) -> None:
        """Copy a file here, without syncing it."""
        target = self.folder / path
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def exists(self, path: str) -> bool:
        """Return whether there is such a file."""
        return (self.folder / path).exists()

    def list(self, folder: str = "") -> list[Found]:
        """Return every file below a folder, hidden ones too."""
        found = []
        for path in sorted(path for path in (self.folder / folder).rglob("*") if path.is_file()):
            with suppress(FileNotFoundError):  # it was deleted meanwhile
                found.append(_found(path, self.folder))
        return found

    def remove(self, path: str) -> None:
        """Delete a file, or a folder, durably."""
        with writing(self.folder / path):
            if (self.folder / path).exists():
                remove(self.folder / path)

    def show(self, path: str = "") -> Path:
        """Return the path of a file."""
        return self.folder / path

    def sweep(self, ours: re.Pattern[str], is_known: Callable[[str], bool], known: Container[str] = ()) -> Sweep:
        """Delete files of such names, and unfinished ones, that nothing refers to and no live process holds.

        They lie one folder deep; others are left alone, and so are ``known`` ones, without a closer look. ``is_known``
        is asked once a file is locked: a live writer has committed by then.
        """
        swept: Sweep = []
        for path in sorted(self.folder.glob("*/*")) + sorted(self.folder.glob("*/.*")):
            is_ours = ours.fullmatch(path.name) or (path.name.startswith(".") and path.name.endswith(ASIDE))
            if is_ours and path.relative_to(self.folder).as_posix() not in known:
                swept += self._sweep_one(path, is_known)
        return swept

    def _sweep_one(self, path: Path, is_known: Callable[[str], bool]) -> Sweep:
        with seized(path) as free, writing(path):
            if not free or is_known(path.relative_to(self.folder).as_posix()):
                return []
            try:
                swept = Swept(path, size_of(path))
            except FileNotFoundError:  # a purge has just deleted it
                return []
            remove(path)
        return [swept]


def _found(path: Path, folder: Path) -> Found:
    facts = path.stat()
    return Found(path.relative_to(folder).as_posix(), facts.st_size, datetime.fromtimestamp(facts.st_mtime, UTC))
