"""Storage places of segments: a local folder, or a folder of an object store.

    place.put(path, data)   write the whole segment and hold it until its index is committed; deleted when that fails
    place.source(path)      what Arrow reads it from
    place.require(path)     called within the transaction that enters it: is it still there?

In a folder, a lock that dies with the process tells a sweep which files are in use. An object store has none, so the
index itself decides: see :func:`storage.replay.sweep.sweep_bucket`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from storage.errors import DatabaseUnreachable, OsdError, StoreError
from storage.files.bucket import ObjectStore, local_folder
from storage.files.cipher import Cipher
from storage.files.files import TemporaryPath, remove, taken_back_on_error, writing


class SegmentPlace(Protocol):
    """A place that segments are stored in. Paths are relative, parts separated by /."""

    cipher: Cipher | None
    """Encrypts what is written; None leaves it unencrypted."""

    def put(self, path: str, data: memoryview) -> AbstractContextManager[None]:
        """Write a segment whole and hold it until the context ends; an OsdError there deletes it.

        It stays when the database went away in mid-commit: then only a sweep can tell. Raises StoreWriteFailed,
        PlaceUnreachable.
        """

    def require(self, path: str) -> None:
        """Raise StoreError when a sweep took the segment before it was entered."""

    def source(self, path: str) -> Any:
        """Return a path or a buffer to read from. Raises FileNotFoundError, PlaceUnreachable."""

    def remove(self, path: str) -> None:
        """Delete a segment; does nothing when it is not there."""

    def show(self, path: str = "") -> Path | str:
        """Return the segment's name for messages."""


class LocalSegments:
    """Segments in a local folder."""

    def __init__(self, folder: Path, cipher: Cipher | None = None) -> None:
        self.folder, self.cipher = folder, cipher

    @contextmanager
    def put(self, path: str, data: memoryview) -> Iterator[None]:
        """Write the segment aside, sync it and rename it."""
        target = self.folder / path
        with TemporaryPath(target.parent, target.name) as aside:
            aside.write(data)
            aside.rename(target)
            with taken_back_on_error(aside):
                yield

    def require(self, path: str) -> None:
        """Do nothing: the file is locked, so it is there."""

    def source(self, path: str) -> Path:
        """Return the path of the file."""
        return self.folder / path

    def remove(self, path: str) -> None:
        """Delete a segment. Raises StoreWriteFailed."""
        with writing(self.folder / path):
            remove(self.folder / path)

    def show(self, path: str = "") -> Path:
        """Return the path of the file."""
        return self.folder / path


class BucketSegments:
    """Segments in an object store."""

    def __init__(self, bucket: ObjectStore, cipher: Cipher | None = None) -> None:
        self.bucket, self.cipher = bucket, cipher

    @contextmanager
    def put(self, path: str, data: memoryview) -> Iterator[None]:
        """Write the segment in one put, which is whole or not at all."""
        self.bucket.put(path, data)
        try:
            yield
        except DatabaseUnreachable:
            raise
        except OsdError:
            with suppress(OsdError):
                self.bucket.remove(path)
            raise

    def require(self, path: str) -> None:
        """Check that the object exists. Raises StoreError."""
        if not self.bucket.exists(path):
            raise StoreError(reason=f"{self.show(path)} was swept before it was entered; its requests were not kept.")

    def source(self, path: str) -> Any:
        """Return the object's bytes in a buffer reader."""
        import pyarrow as pa

        return pa.BufferReader(self.bucket.get(path))

    def remove(self, path: str) -> None:
        """Delete a segment. Raises PlaceUnreachable."""
        self.bucket.remove(path)

    def show(self, path: str = "") -> str:
        """Return the segment's URL."""
        return self.bucket.show(path)


def segment_place(named: str | None, directory: Path, cipher: Cipher | None = None) -> LocalSegments | BucketSegments:
    """Return the place that ``storage.samples`` names; None is ``segments/`` in the data directory. Raises
    BadSetting."""
    if named is None:
        return LocalSegments(directory / "segments", cipher)
    folder = local_folder(named, "storage.samples")
    if folder is not None:
        return LocalSegments(folder.absolute(), cipher)
    return BucketSegments(ObjectStore(named, "storage.samples"), cipher)
