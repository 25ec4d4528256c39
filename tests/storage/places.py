"""The places of samples and weights as tests see them: what lies there, and how it comes to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage.files.bucket import ObjectStore
from storage.files.places import LocalFolder
from storage.records import DraftVersion
from storage.store import Store
from storage.versions.weight_files import BucketWeights

PLACES = ("folder", "memory", "s3")
GARBAGE = "20200101/" + "a" * 32 + ".parquet"
"""A segment that no row refers to, left by a crash long ago."""


def files_below(folder: Path) -> list[str]:
    """Every file below a folder, hidden ones too."""
    return [each.path for each in LocalFolder(folder).list()]


class Lying:
    """What lies in a place."""

    def __init__(self, place: LocalFolder | ObjectStore) -> None:
        self.place, self.read, self.remove = place, place.get, place.remove

    def names(self) -> list[str]:
        """Everything, in order."""
        return [each.path for each in self.place.list()]

    def write(self, name: str, data: bytes) -> None:
        if isinstance(self.place, ObjectStore):
            self.place.put(name, data)
            return
        (self.place.folder / name).parent.mkdir(exist_ok=True)
        (self.place.folder / name).write_bytes(data)

    def sizes(self) -> int:
        """Bytes of everything."""
        return sum(each.bytes for each in self.place.list())


def segments_of(store: Store) -> Lying:
    """Its segments."""
    return Lying(store.samples.files.place)


def weights_of(store: Store) -> Lying:
    """Its weights."""
    return Lying(store.versions.files.place)  # type: ignore[arg-type]


def forget_cache(store: Store, version: DraftVersion) -> None:
    """As on a machine that never loaded it; where weights lie in a folder there is no cache."""
    if isinstance(store.versions.files, BucketWeights):
        shutil.rmtree(store.versions.files.folder / version.path, ignore_errors=True)


def files_of(store: Store, version: DraftVersion) -> set[str]:
    """Names of a version's files in their place."""
    top = f"{version.path}/"
    return {name.removeprefix(top) for name in weights_of(store).names() if name.startswith(top)}
