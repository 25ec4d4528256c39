"""Files and folders that appear whole or not at all.

Contents are written aside under a dotted name, synced, and only then renamed. From its first byte until its owner
releases it, the file is held by a lock that dies with the process, so that a sweep can tell a live process's work from
what a killed one left behind, without guessing from its age. POSIX only (``flock``, directory ``fsync``).
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from storage.errors import DatabaseUnreachable, OsdError, StoreWriteFailed

ASIDE = ".aside"
"""Suffix of the name of an unfinished file."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn any error while writing ``path`` into StoreWriteFailed."""
    try:
        yield
    except OsdError:
        raise
    except OSError as error:
        raise StoreWriteFailed(path=path, reason=error.strerror or str(error)) from error
    except Exception as error:  # writers of weights have error classes of their own
        reason = (str(error).strip().splitlines() or [""])[0]
        raise StoreWriteFailed(path=path, reason=f"{type(error).__name__}: {reason}") from error


class TemporaryPath:
    """A file or folder that is written beside its final place.

    Leaving the context releases its lock; leaving before :meth:`rename` deletes it.
    """

    def __init__(self, final_folder: Path, name: str, *, folder: bool = False) -> None:
        self.path = final_folder / f".{name}{ASIDE}"
        self.folder = folder
        self.renamed = False
        self._handle = -1

    def __enter__(self) -> TemporaryPath:
        with writing(self.path):
            make_folder(self.path.parent)
            while not self._create():
                pass
        return self

    def _create(self) -> bool:
        """Create and lock it; False when that has to be tried again.

        A sweep may have taken it in the instant before it was locked, or the leftovers of a killed export of the same
        name had to be cleared.
        """
        try:
            self._handle = self._open()
        except FileExistsError:
            with seized(self.path) as free:
                if not free:
                    raise
                remove(self.path)
            return False
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        if _is_still(self.path, self._handle):
            return True
        os.close(self._handle)
        return False

    def _open(self) -> int:
        if not self.folder:
            return os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        self.path.mkdir()
        return os.open(self.path, os.O_RDONLY)

    def write(self, data: memoryview) -> None:
        """Write a file's bytes and sync them."""
        with writing(self.path):
            while data:
                data = data[os.write(self._handle, data) :]
            sync(self._handle)

    def rename(self, target: Path) -> None:
        """Rename it to its final name, durably. Replaces a folder that nothing refers to."""
        with writing(target):
            if self.folder and target.exists():
                shutil.rmtree(target)
            rename(self.path, target)
            self.path, self.renamed = target, True

    def remove(self) -> None:
        """Delete it, even after its rename."""
        with suppress(OSError):
            remove(self.path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.renamed:
            self.remove()
        os.close(self._handle)


def write_whole(path: Path, data: memoryview) -> None:
    """Write a file that appears whole or not at all; it takes the place of another. Raises StoreWriteFailed."""
    with TemporaryPath(path.absolute().parent, path.name) as aside:
        aside.write(data)
        aside.rename(path.absolute())


@contextmanager
def taken_back_on_error(aside: TemporaryPath) -> Iterator[None]:
    """Delete a renamed file when the transaction that would have entered it fails.

    It stays when the database went away: the commit may have arrived, and only a sweep can tell later.
    """
    try:
        yield
    except DatabaseUnreachable:
        raise
    except OsdError:
        aside.remove()
        raise


def sync(handle: int) -> None:
    """Wait until the file's bytes are on the disk."""
    os.fsync(handle)


def sync_path(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def rename(source: Path, target: Path) -> None:
    """Rename within a folder, durably."""
    os.rename(source, target)
    sync_path(target.parent)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and its parents, durably."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode, exist_ok=True)
    sync_path(path.parent)


def remove(path: Path) -> None:
    """Delete a file or a folder, durably; does nothing when it is not there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=False)
    else:
        path.unlink(missing_ok=True)
    sync_path(path.parent)


@contextmanager
def seized(path: Path) -> Iterator[bool]:
    """Lock a possibly abandoned file or folder; yields False when it is gone or a live process holds it."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _lock_at_once(handle) and _is_still(path, handle)
    finally:
        os.close(handle)


def _is_still(path: Path, handle: int) -> bool:
    """Return whether the path still names the opened file: it may have been renamed or removed before it was locked."""
    try:
        return os.fstat(handle).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _lock_at_once(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def size_of(path: Path) -> int:
    """Return the size in bytes of a file, or of everything in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(each.lstat().st_size for each in files if not each.is_dir())
