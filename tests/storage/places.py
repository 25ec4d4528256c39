"""The places of samples and weights as tests see them: what lies there, and how it comes to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage.files.bucket import ObjectStore
from storage.records import DraftVersion
from storage.store import Store

PLACES = ("folder", "memory", "s3")
GARBAGE = "20200101/" + "a" * 32 + ".parquet"
"""A segment that no row refers to, left by a crash long ago."""


def files_below(folder: Path) -> list[str]:
    """Every file below a folder, hidden ones too."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


class Lying:
    """What lies in a place: in its folder, or in its bucket."""

    def __init__(self, where: Path | ObjectStore) -> None:
        self.where = where

    def names(self) -> list[str]:
        """Everything, in order."""
        return files_below(self.where) if isinstance(self.where, Path) else [each.path for each in self.where.list()]

    def read(self, name: str) -> bytes:
        return (self.where / name).read_bytes() if isinstance(self.where, Path) else self.where.get(name)

    def write(self, name: str, data: bytes) -> None:
        if isinstance(self.where, ObjectStore):
            self.where.put(name, data)
            return
        (self.where / name).parent.mkdir(exist_ok=True)
        (self.where / name).write_bytes(data)

    def remove(self, name: str) -> None:
        if isinstance(self.where, Path):
            (self.where / name).unlink()
        else:
            self.where.remove(name)

    def sizes(self) -> int:
        """Bytes of everything."""
        return sum(len(self.read(name)) for name in self.names())


def segments_of(store: Store) -> Lying:
    """Its segments."""
    place = store.samples.place
    return Lying(getattr(place, "bucket", None) or place.folder)


def weights_of(store: Store) -> Lying:
    """Its weights."""
    place = store.versions.place
    return Lying(getattr(place, "bucket", None) or place.folder)


def forget_cache(store: Store, version: DraftVersion) -> None:
    """As on a machine that never loaded it; where weights lie in a folder there is no cache."""
    if hasattr(store.versions.place, "bucket"):
        shutil.rmtree(store.versions.place.folder / version.path, ignore_errors=True)


def files_of(store: Store, version: DraftVersion) -> set[str]:
    """Names of a version's files in their place."""
    top = f"{version.path}/"
    return {name.removeprefix(top) for name in weights_of(store).names() if name.startswith(top)}
