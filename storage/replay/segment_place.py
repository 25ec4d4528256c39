"""Where segments lie: a folder of this machine, or a folder of an object store.

    place.put(path, data)   the whole segment, held until its index is committed; taken back when that fails
    place.source(path)      what Arrow reads it from
    place.require(path)     called within the transaction that enters it: is it there still?

In a folder a lock that dies with the process tells a sweep whose work is under way. An object store has none, so the
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
from storage.files.files import Aside, remove, taken_back_on_error, writing


class SegmentPlace(Protocol):
    """What a place of segments does. Paths are relative, parts divided by /."""

    cipher: Cipher | None
    """Encrypts what is written; None writes it as it is."""

    def put(self, path: str, data: memoryview) -> AbstractContextManager[None]:
        """Write a segment whole and hold it. It is taken back when the context ends with an OsdError, unless the
        database went away in mid-commit: then only a sweep can tell. Raises StoreWriteFailed, PlaceUnreachable."""

    def require(self, path: str) -> None:
        """Raises StoreError when a sweep took it before it was entered."""

    def source(self, path: str) -> Any:
        """A path or a buffer to read from. Raises FileNotFoundError, PlaceUnreachable."""

    def remove(self, path: str) -> None:
        """Delete it; nothing there is fine."""

    def show(self, path: str = "") -> Path | str:
        """As messages name it."""


class LocalSegments:
    """Segments below a folder."""

    def __init__(self, folder: Path, cipher: Cipher | None = None) -> None:
        self.folder, self.cipher = folder, cipher

    @contextmanager
    def put(self, path: str, data: memoryview) -> Iterator[None]:
        """Aside, synced, renamed."""
        target = self.folder / path
        with Aside(target.parent, target.name) as aside:
            aside.write(data)
            aside.rename(target)
            with taken_back_on_error(aside):
                yield

    def require(self, path: str) -> None:
        """It is held, so it is there."""

    def source(self, path: str) -> Path:
        """The file."""
        return self.folder / path

    def remove(self, path: str) -> None:
        """Raises StoreWriteFailed."""
        with writing(self.folder / path):
            remove(self.folder / path)

    def show(self, path: str = "") -> Path:
        """The file."""
        return self.folder / path


class BucketSegments:
    """Segments of an object store."""

    def __init__(self, bucket: ObjectStore, cipher: Cipher | None = None) -> None:
        self.bucket, self.cipher = bucket, cipher

    @contextmanager
    def put(self, path: str, data: memoryview) -> Iterator[None]:
        """One put, which is whole or not at all."""
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
        """A look at the store. Raises StoreError."""
        if not self.bucket.exists(path):
            raise StoreError(reason=f"{self.show(path)} was swept before it was entered; its requests were not kept.")

    def source(self, path: str) -> Any:
        """Its bytes."""
        import pyarrow as pa

        return pa.BufferReader(self.bucket.get(path))

    def remove(self, path: str) -> None:
        """Raises PlaceUnreachable."""
        self.bucket.remove(path)

    def show(self, path: str = "") -> str:
        """The URL."""
        return self.bucket.show(path)


def segment_place(named: str | None, directory: Path, cipher: Cipher | None = None) -> LocalSegments | BucketSegments:
    """The place that ``storage.samples`` names; None is ``segments/`` in the data directory. Raises
    BadSetting."""
    if named is None:
        return LocalSegments(directory / "segments", cipher)
    folder = local_folder(named, "storage.samples")
    if folder is not None:
        return LocalSegments(folder.absolute(), cipher)
    return BucketSegments(ObjectStore(named, "storage.samples"), cipher)
