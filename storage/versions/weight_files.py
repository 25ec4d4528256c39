"""Folders of weights in their place: a local folder, or an object store with a cache on this machine.

    weights/<draft>/<version id>/     in a folder: written aside, renamed, READY last
    <URL>/<draft>/<32 hex digits>/    in an object store: put file by file, then osd.json, READY last

Readers only use paths that a row of the ledger has, so files become visible once their version is entered.

Safetensors are loaded from local files, so weights of an object store are fetched into a cache. A version never
changes, so its cached folder stays valid; it is checked against its digest before every use that matters and fetched
again when it differs. Folders that nobody has used for a week leave the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import select

from storage.errors import DatabaseUnreachable, OsdError, StoreWriteFailed, WeightsDamaged
from storage.files.bucket import ObjectStore, open_place
from storage.files.files import TemporaryPath, make_folder, remove, seized, size_of, taken_back_on_error, writing
from storage.files.places import Found, LocalFolder, Swept
from storage.records import DraftVersion, new_id
from storage.sql.database import Database
from storage.sql.ledger import lock_all_drafts
from storage.sql.tables import VersionRow
from storage.versions import weights

CACHE_SECONDS = 7 * 86400.0
KEY = re.compile(r"[0-9a-f]{32}")
VERSION = re.compile(r".+-\d{6}-[0-9a-f]{8}")
Enter = Callable[[str], None]
"""What puts weights at a version's path, called within the transaction that enters the version."""


class WeightFiles:
    """Weights in a local folder, from which they are read as they lie. ``path`` is a version's, relative to it.

    ``folder`` is the local one in which weights are written aside, and from which they are read: of a bucket, a cache.
    """

    def __init__(self, place: LocalFolder | ObjectStore, folder: Path) -> None:
        self.place, self.folder = place, folder

    def path(self, draft: str, version_id: str, key: str) -> str:
        """Return the path for a new version; ``key`` is 32 hexadecimal digits of its own."""
        return f"{draft}/{version_id}"

    @contextmanager
    def entering(self, aside: TemporaryPath, draft: str, key: str) -> Iterator[Enter]:
        """Yield what puts the weights that were written aside in their place, while a version's row is created; an
        OsdError deletes them again.

        Raises StoreWriteFailed, PlaceUnreachable.
        """
        with taken_back_on_error(aside):
            yield lambda path: aside.rename(self.folder / path)

    def local(self, version: DraftVersion) -> Path:
        """Return a local folder with the version's files. Raises WeightsDamaged, PlaceUnreachable."""
        return self.folder / version.path

    def verify(self, version: DraftVersion, *, ready: bool) -> None:
        """Raise WeightsDamaged unless every byte matches the digest and, if ``ready``, the READY marker is there."""
        weights.verify(self.local(version), version.id, version.digest, ready=ready)

    def master(self, version: DraftVersion) -> Path:
        """Return a local file with the version's float32 weights, which it has. Raises WeightsDamaged,
        PlaceUnreachable."""
        return self.local(version) / weights.MASTER

    def sweep(self, db: Database) -> list[Swept]:
        """Delete folders whose versions were never entered in the ledger, or whose deletion did not finish."""
        assert isinstance(self.place, LocalFolder)
        return self.place.sweep(VERSION, lambda path: _is_known(db, path))

    def is_marked(self, path: str) -> bool:
        """Return whether the READY marker is there."""
        return self.place.exists(f"{path}/{weights.MARKER}")

    def mark(self, path: str) -> None:
        """Write the READY marker and sync it; fine if it is there already."""
        weights.mark_ready(self.folder / path)

    def unmark(self, path: str) -> None:
        """Delete the READY marker."""
        self.place.remove(f"{path}/{weights.MARKER}")

    def provenance(self, path: str) -> dict[str, Any]:
        """Return the contents of osd.json; empty when it is missing or unreadable."""
        try:
            return dict(json.loads(self.place.get(f"{path}/{weights.PROVENANCE}")))
        except (OSError, ValueError):
            return {}

    def remove_master(self, path: str) -> None:
        """Delete a version's float32 weights; fine if there are none. Raises StoreWriteFailed, PlaceUnreachable."""
        self.place.remove(f"{path}/{weights.MASTER}")

    def remove(self, path: str) -> None:
        """Delete a version's files, cached ones too; fine if there are none. Raises StoreWriteFailed,
        PlaceUnreachable."""
        with writing(self.folder / path):
            if (self.folder / path).is_dir():
                remove(self.folder / path)

    def uncache(self, path: str) -> None:
        """Delete this machine's copy of remote files, if there is one. Raises StoreWriteFailed."""


class BucketWeights(WeightFiles):
    """Weights in an object store; ``folder`` is the cache."""

    place: ObjectStore

    def path(self, draft: str, version_id: str, key: str) -> str:
        """Return the version's path, which needs no number: weights are uploaded before anything is locked."""
        return f"{draft}/{key}"

    @contextmanager
    def entering(self, aside: TemporaryPath, draft: str, key: str) -> Iterator[Enter]:
        """Upload the weights first; osd.json, and READY if present, follow once the version has its number."""
        entered = False

        def enter(path: str) -> None:
            nonlocal entered
            self._require_put(aside.path, path)
            for name in (weights.MASTER, weights.PROVENANCE, weights.MARKER):
                if (aside.path / name).exists():
                    self.place.put_file(aside.path / name, f"{path}/{name}")
            self._keep(aside, path)
            entered = True

        try:
            for file in weights.weight_files(aside.path):
                self.place.put_file(file, f"{draft}/{key}/{file.relative_to(aside.path).as_posix()}")
            yield enter
        except DatabaseUnreachable:
            raise  # the commit may have arrived; only a sweep can tell later
        except OsdError:
            entered = False
            raise
        finally:
            if not entered:
                with suppress(OsdError):
                    self._remove_all(f"{draft}/{key}")

    def _require_put(self, folder: Path, path: str) -> None:
        """Require that the uploaded files are all there, with the draft locked as a sweep locks it. Raises
        StoreWriteFailed."""
        put = {each.path.removeprefix(f"{path}/"): each.bytes for each in self.place.list(path)}
        if put != _sizes(folder, weights.weight_files(folder)):
            raise StoreWriteFailed(path=self.place.show(path), reason="what was put is not whole, or was swept")

    def _keep(self, aside: TemporaryPath, path: str) -> None:
        """Move the folder into the cache under its name, unless another process put it there first."""
        target = self.folder / path
        with writing(target):
            make_folder(target.parent)
            try:
                os.rename(aside.path, target)
            except OSError:
                if not target.is_dir():
                    raise
                return
        aside.path, aside.renamed = target, True

    def local(self, version: DraftVersion) -> Path:
        """Return the version's folder in the cache, fetching it if it is not there."""
        folder = self.folder / version.path
        if not folder.is_dir():
            self._fetch(version)
        with suppress(OSError):
            os.utime(folder)  # marks it as used
        return folder

    def _fetch(self, version: DraftVersion) -> None:
        there = self._objects(version)
        with TemporaryPath(self.folder / version.draft, new_id(), folder=True) as aside:
            for each in there:
                name = each.path.removeprefix(f"{version.path}/")
                if name not in (weights.MARKER, weights.MASTER):
                    self._fetch_file(version, each.path, aside.path / name)
            found = weights.digest_of(aside.path, weights.weight_files(aside.path))
            if found != version.digest:
                raise weights.other_digest(version.id, found, version.digest)
            self._keep(aside, version.path)

    def _fetch_file(self, version: DraftVersion, path: str, target: Path) -> None:
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.place.get_file(path, target)
            except FileNotFoundError:
                raise WeightsDamaged(version=version.id, reason=f"{self.place.show(path)} is missing") from None

    def _objects(self, version: DraftVersion) -> list[Found]:
        if there := self.place.list(version.path):
            return there
        raise WeightsDamaged(version=version.id, reason=f"there is nothing at {self.place.show(version.path)}")

    def verify(self, version: DraftVersion, *, ready: bool) -> None:
        """Check names and sizes in the store and every byte in the cache, fetching a damaged copy again."""
        there = {each.path.removeprefix(f"{version.path}/"): each.bytes for each in self._objects(version)}
        if ready and weights.MARKER not in there:
            raise weights.not_marked(version.id)
        folder = self.local(version)
        if weights.digest_of(folder, weights.weight_files(folder)) != version.digest:
            shutil.rmtree(folder, ignore_errors=True)
            folder = self.local(version)
        files = weights.weight_files(folder)
        ours = {name: size for name, size in there.items() if name not in weights.BESIDE}
        if _sizes(folder, files) != ours:
            reason = f"the files at {self.place.show(version.path)} are others than were put there"
            raise WeightsDamaged(version=version.id, reason=reason)

    def mark(self, path: str) -> None:
        """Write READY as an empty object."""
        self.place.put(f"{path}/{weights.MARKER}", b"")

    def master(self, version: DraftVersion) -> Path:
        """Return the file in the cache, fetching it if it is not there."""
        path = self.local(version) / weights.MASTER
        if not path.exists():
            with TemporaryPath(path.parent.parent, new_id()) as aside:
                self._fetch_file(version, f"{version.path}/{weights.MASTER}", aside.path)
                aside.rename(path)
        return path

    def remove_master(self, path: str) -> None:
        """Delete the object, and the file in the cache."""
        super().remove_master(path)
        with writing(self.folder / path):
            (self.folder / path / weights.MASTER).unlink(missing_ok=True)

    def remove(self, path: str) -> None:
        """Delete the version's objects, READY first, so that a concurrent reader loads nothing, and its cached
        folder."""
        self.unmark(path)
        self._remove_all(path)
        self.uncache(path)

    def uncache(self, path: str) -> None:
        """Delete the version's folder in the cache."""
        super().remove(path)

    def sweep(self, db: Database) -> list[Swept]:
        """Delete weights in the store that no version refers to, and cached folders long unused.

        Entering a version and this sweep both lock the draft, so whichever is second sees what the first did.
        """
        swept = list(self._sweep_cache())
        for path, group in groupby(self.place.list(), lambda each: "/".join(each.path.split("/")[:2])):
            objects = list(group)
            if KEY.fullmatch(path.rpartition("/")[2]) and all(each.is_old for each in objects) and self._take(db, path):
                swept.append(Swept(self.place.show(path), sum(each.bytes for each in objects)))
        return swept

    def _take(self, db: Database, path: str) -> bool:
        if _is_known(db, path):
            return False
        with db.session() as session:
            lock_all_drafts(session)
            if session.scalar(_entered(path)) is not None:
                return False
            self._remove_all(path)
        return True

    def _remove_all(self, path: str) -> None:
        for each in self.place.list(path):
            self.place.remove(each.path)

    def _sweep_cache(self) -> Iterator[Swept]:
        for folder in sorted(self.folder.glob("*/*")) + sorted(self.folder.glob("*/.*")):
            with suppress(FileNotFoundError), seized(folder) as free:
                if free and folder.stat().st_mtime < time.time() - CACHE_SECONDS:
                    swept = Swept(folder, size_of(folder))
                    shutil.rmtree(folder, ignore_errors=True)
                    yield swept


def _entered(path: str) -> Any:
    """Return the query for the version that lies at a path."""
    return select(VersionRow.id).where(VersionRow.path == path, VersionRow.deleted_at.is_(None))


def _is_known(db: Database, path: str) -> bool:
    return db.scalar(_entered(path)) is not None


def _sizes(folder: Path, files: list[Path]) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def weight_files(named: str | None, directory: Path, cache: Path) -> WeightFiles:
    """Return the weights of the place that ``storage.weights`` names; None is ``weights/`` in the data directory.
    Raises BadSetting."""
    place = open_place(named, directory / "weights", "storage.weights")
    if isinstance(place, LocalFolder):
        return WeightFiles(place, place.folder)
    return BucketWeights(place, cache / "weights" / hashlib.sha256(place.url.encode()).hexdigest()[:8])
