"""Where weights lie: a folder of this machine, or a folder of an object store with a cache on this machine.

    weights/<draft>/<version id>/     in a folder: written aside, renamed, READY last
    <URL>/<draft>/<32 hex digits>/    in an object store: put file by file, then osd.json, READY last

Nothing is read below a name that no row of the ledger has, so what was put is seen once its version is entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from storage.files.files import Aside, remove, taken_back_on_error, writing
from storage.records import DraftVersion
from storage.replay import sweep
from storage.sql.database import Database
from storage.versions import weights

Place = Callable[[str], None]
"""Called with a version's path, within the transaction that enters it."""


class WeightPlace(Protocol):
    """What a place of weights does. ``path`` is a version's, below the place."""

    folder: Path
    """Where folders of weights are written aside, and read from."""

    def path(self, draft: str, version_id: str, key: str) -> str:
        """What a new version's path is; ``key`` is 32 hexadecimal digits of its own."""

    def entering(self, aside: Aside, draft: str, key: str) -> AbstractContextManager[Place]:
        """While a version's row is made: what is put is taken back on an OsdError. Raises StoreWriteFailed,
        PlaceUnreachable."""

    def local(self, version: DraftVersion) -> Path:
        """A folder with its files. Raises WeightsDamaged, PlaceUnreachable."""

    def verify(self, version: DraftVersion, *, ready: bool) -> None:
        """Raises WeightsDamaged unless the files are those that were digested, and marked READY where that is due."""

    def is_marked(self, path: str) -> bool:
        """Whether READY is there."""

    def mark(self, path: str) -> None:
        """Write READY; there already is fine."""

    def unmark(self, path: str) -> None:
        """Take READY back."""

    def provenance(self, path: str) -> dict[str, Any]:
        """What osd.json says; empty when it is missing or unreadable."""

    def remove(self, path: str) -> None:
        """Delete a version's files, cached ones too; none there is fine. Raises StoreWriteFailed, PlaceUnreachable."""

    def uncache(self, path: str) -> None:
        """Delete this machine's copy of what lies elsewhere, if there is one. Raises StoreWriteFailed."""

    def sweep(self, db: Database) -> list[sweep.Swept]:
        """Remove what killed processes left behind."""

    def show(self, path: str = "") -> Path | str:
        """As messages name it."""


class LocalWeights:
    """Weights below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, draft: str, version_id: str, key: str) -> str:
        """Named for people."""
        return f"{draft}/{version_id}"

    @contextmanager
    def entering(self, aside: Aside, draft: str, key: str) -> Iterator[Place]:
        """A rename."""
        with taken_back_on_error(aside):
            yield lambda path: aside.rename(self.folder / path)

    def local(self, version: DraftVersion) -> Path:
        """The folder itself."""
        return self.folder / version.path

    def verify(self, version: DraftVersion, *, ready: bool) -> None:
        """Every byte is read."""
        weights.verify(self.local(version), version.id, version.digest, ready=ready)

    def is_marked(self, path: str) -> bool:
        """A look."""
        return (self.folder / path / weights.MARKER).exists()

    def mark(self, path: str) -> None:
        """Synced."""
        weights.mark_ready(self.folder / path)

    def unmark(self, path: str) -> None:
        """Deleted."""
        (self.folder / path / weights.MARKER).unlink(missing_ok=True)

    def provenance(self, path: str) -> dict[str, Any]:
        """Of the file."""
        return weights.read_provenance(self.folder / path)

    def remove(self, path: str) -> None:
        """The folder goes."""
        delete_folder(self.folder / path)

    def uncache(self, path: str) -> None:
        """There are no copies."""

    def sweep(self, db: Database) -> list[sweep.Swept]:
        """Folders that no live process holds."""
        return sweep.sweep_weights(db, self.folder)

    def show(self, path: str = "") -> Path:
        """The folder."""
        return self.folder / path


def delete_folder(folder: Path) -> None:
    """Durably; not there is fine. Raises StoreWriteFailed."""
    with writing(folder):
        if folder.is_dir():
            remove(folder)
