"""Storage places of weights: a local folder, or a folder of an object store with a local cache.

    weights/<draft>/<version id>/     in a folder: written aside, renamed, READY last
    <URL>/<draft>/<32 hex digits>/    in an object store: put file by file, then osd.json, READY last

Readers only use paths that a row of the ledger has, so files become visible once their version is entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from storage.files.files import TemporaryPath, remove, taken_back_on_error, writing
from storage.records import DraftVersion
from storage.replay import sweep
from storage.sql.database import Database
from storage.versions import weights

Place = Callable[[str], None]
"""A callback that puts weights at a version's path, called within the transaction that enters the version."""


class WeightPlace(Protocol):
    """A place that weights are stored in. ``path`` is a version's, relative to the place."""

    folder: Path
    """Local folder in which weights are written aside, and from which they are read."""

    def path(self, draft: str, version_id: str, key: str) -> str:
        """Return the path for a new version; ``key`` is 32 hexadecimal digits of its own."""

    def entering(self, aside: TemporaryPath, draft: str, key: str) -> AbstractContextManager[Place]:
        """Yield the callback that puts weights in place while a version's row is created; an OsdError deletes them
        again.

        Raises StoreWriteFailed, PlaceUnreachable.
        """

    def local(self, version: DraftVersion) -> Path:
        """Return a local folder with the version's files. Raises WeightsDamaged, PlaceUnreachable."""

    def verify(self, version: DraftVersion, *, ready: bool) -> None:
        """Raise WeightsDamaged unless the files match their digest and, if ``ready``, the READY marker is there."""

    def is_marked(self, path: str) -> bool:
        """Return whether the READY marker is there."""

    def mark(self, path: str) -> None:
        """Write the READY marker; fine if it is there already."""

    def unmark(self, path: str) -> None:
        """Delete the READY marker."""

    def provenance(self, path: str) -> dict[str, Any]:
        """Return the contents of osd.json; empty when it is missing or unreadable."""

    def master(self, version: DraftVersion) -> Path:
        """Return a local file with the version's float32 weights, which it has. Raises WeightsDamaged,
        PlaceUnreachable."""

    def remove_master(self, path: str) -> None:
        """Delete a version's float32 weights; fine if there are none. Raises StoreWriteFailed, PlaceUnreachable."""

    def remove(self, path: str) -> None:
        """Delete a version's files, cached ones too; fine if there are none. Raises StoreWriteFailed,
        PlaceUnreachable."""

    def uncache(self, path: str) -> None:
        """Delete this machine's copy of remote files, if there is one. Raises StoreWriteFailed."""

    def sweep(self, db: Database) -> list[sweep.Swept]:
        """Delete what killed processes left behind; return it."""

    def show(self, path: str = "") -> Path | str:
        """Return the path's name for messages."""


class LocalWeights:
    """Weights in a local folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, draft: str, version_id: str, key: str) -> str:
        """Return a path named after the draft and the version's id."""
        return f"{draft}/{version_id}"

    @contextmanager
    def entering(self, aside: TemporaryPath, draft: str, key: str) -> Iterator[Place]:
        """Rename the folder that was written aside to its place."""
        with taken_back_on_error(aside):
            yield lambda path: aside.rename(self.folder / path)

    def local(self, version: DraftVersion) -> Path:
        """Return the version's folder."""
        return self.folder / version.path

    def verify(self, version: DraftVersion, *, ready: bool) -> None:
        """Read every byte and compare the digest. Raises WeightsDamaged."""
        weights.verify(self.local(version), version.id, version.digest, ready=ready)

    def is_marked(self, path: str) -> bool:
        """Return whether the READY file exists."""
        return (self.folder / path / weights.MARKER).exists()

    def mark(self, path: str) -> None:
        """Write the READY file and sync it."""
        weights.mark_ready(self.folder / path)

    def unmark(self, path: str) -> None:
        """Delete the READY file."""
        (self.folder / path / weights.MARKER).unlink(missing_ok=True)

    def provenance(self, path: str) -> dict[str, Any]:
        """Return the contents of osd.json; empty when it is missing or unreadable."""
        return weights.read_provenance(self.folder / path)

    def master(self, version: DraftVersion) -> Path:
        """Return the file beside the version's own."""
        return self.local(version) / weights.MASTER

    def remove_master(self, path: str) -> None:
        """Delete the file."""
        with writing(self.folder / path):
            (self.folder / path / weights.MASTER).unlink(missing_ok=True)

    def remove(self, path: str) -> None:
        """Delete the version's folder."""
        delete_folder(self.folder / path)

    def uncache(self, path: str) -> None:
        """Do nothing: there are no cached copies."""

    def sweep(self, db: Database) -> list[sweep.Swept]:
        """Delete folders that no version refers to and no live process holds."""
        return sweep.sweep_weights(db, self.folder)

    def show(self, path: str = "") -> Path:
        """Return the path of the folder."""
        return self.folder / path


def delete_folder(folder: Path) -> None:
    """Delete a folder durably; fine if it is not there. Raises StoreWriteFailed."""
    with writing(folder):
        if folder.is_dir():
            remove(folder)
