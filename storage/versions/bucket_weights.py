"""Weights in an object store, and their cache on this machine: safetensors are loaded from local files.

A version never changes, so its folder in the cache is good for ever; it is read against its digest before every use
that matters, and fetched anew when it is not what was published. What nobody has used for a week leaves the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import select

from storage.errors import DatabaseUnreachable, OsdError, StoreWriteFailed, WeightsDamaged
from storage.files.bucket import Found, ObjectStore, local_folder
from storage.files.files import Aside, make_folder, seized, writing
from storage.records import DraftVersion, new_id
from storage.replay.sweep import Swept, is_old
from storage.sql.database import Database
from storage.sql.leases import lock_all_drafts
from storage.sql.tables import VersionRow
from storage.versions import weights
from storage.versions.weight_place import LocalWeights, Place, delete_folder

CACHE_SECONDS = 7 * 86400.0
KEY = re.compile(r"[0-9a-f]{32}")


class BucketWeights:
    """See :class:`storage.versions.weight_place.WeightPlace`. ``folder`` is the cache."""

    def __init__(self, bucket: ObjectStore, cache: Path) -> None:
        self.bucket, self.folder = bucket, cache

    # entering

    def path(self, draft: str, version_id: str, key: str) -> str:
        """Known before the version has its number: weights are put before anything is locked."""
        return f"{draft}/{key}"

    @contextmanager
    def entering(self, aside: Aside, draft: str, key: str) -> Iterator[Place]:
        """The weights are put first; osd.json, and READY if it is there, once the version has its number."""
        entered = False

        def enter(path: str) -> None:
            nonlocal entered
            self._require_put(aside.path, path)
            for name in (weights.PROVENANCE, weights.MARKER):
                if (aside.path / name).exists():
                    self.bucket.put_file(aside.path / name, f"{path}/{name}")
            self._keep(aside, path)
            entered = True

        try:
            for file in weights.weight_files(aside.path):
                self.bucket.put_file(file, f"{draft}/{key}/{file.relative_to(aside.path).as_posix()}")
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
        """Called with the draft locked, as a sweep has it locked. Raises StoreWriteFailed."""
        put = {each.path.removeprefix(f"{path}/"): each.bytes for each in self.bucket.list(path)}
        if put != _sizes(folder, weights.weight_files(folder)):
            raise StoreWriteFailed(path=self.show(path), reason="what was put is not whole, or was swept")

    def _keep(self, aside: Aside, path: str) -> None:
        """Into the cache under its name. Another process may have been faster: then its folder serves."""
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

    # reading

    def local(self, version: DraftVersion) -> Path:
        """In the cache, fetched if it is not there."""
        folder = self.folder / version.path
        if not folder.is_dir():
            self._fetch(version)
        with suppress(OSError):
            os.utime(folder)  # it was used
        return folder

    def _fetch(self, version: DraftVersion) -> None:
        there = self._objects(version)
        with Aside(self.folder / version.draft, new_id(), folder=True) as aside:
            for each in there:
                name = each.path.removeprefix(f"{version.path}/")
                if name != weights.MARKER:
                    self._fetch_file(version, each.path, aside.path / name)
            found = weights.digest_of(aside.path, weights.weight_files(aside.path))
            if found != version.digest:
                raise _damaged(version, f"their digest is {found[:8]}…, published was {version.digest[:8]}…")
            self._keep(aside, version.path)

    def _fetch_file(self, version: DraftVersion, path: str, target: Path) -> None:
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.bucket.get_file(path, target)
            except FileNotFoundError:
                raise _damaged(version, f"{self.show(path)} is missing") from None

    def _objects(self, version: DraftVersion) -> list[Found]:
        there = self.bucket.list(version.path)
        if not there:
            raise _damaged(version, f"there is nothing at {self.show(version.path)}")
        return there

    def verify(self, version: DraftVersion, *, ready: bool) -> None:
        """Names and sizes in the store; every byte in the cache, which is fetched anew if it is damaged."""
        there = {each.path.removeprefix(f"{version.path}/"): each.bytes for each in self._objects(version)}
        if ready and weights.MARKER not in there:
            raise _damaged(version, f"{weights.MARKER} is missing, so its publication never finished")
        folder = self.local(version)
        if weights.digest_of(folder, weights.weight_files(folder)) != version.digest:
            shutil.rmtree(folder, ignore_errors=True)
            folder = self.local(version)
        files = weights.weight_files(folder)
        ours = {name: size for name, size in there.items() if name not in (weights.PROVENANCE, weights.MARKER)}
        if _sizes(folder, files) != ours:
            raise _damaged(version, f"the files at {self.show(version.path)} are others than were put there")

    def is_marked(self, path: str) -> bool:
        """A look at the store."""
        return self.bucket.exists(f"{path}/{weights.MARKER}")

    def mark(self, path: str) -> None:
        """An empty object."""
        self.bucket.put(f"{path}/{weights.MARKER}", b"")

    def unmark(self, path: str) -> None:
        """Deleted."""
        self.bucket.remove(f"{path}/{weights.MARKER}")

    def provenance(self, path: str) -> dict[str, Any]:
        """Of the object."""
        try:
            return dict(json.loads(self.bucket.get(f"{path}/{weights.PROVENANCE}")))
        except (FileNotFoundError, ValueError):
            return {}

    def remove(self, path: str) -> None:
        """READY first, so that a reader who comes in between finds nothing that it may load."""
        self.unmark(path)
        self._remove_all(path)
        self.uncache(path)

    def uncache(self, path: str) -> None:
        """The folder in the cache goes."""
        delete_folder(self.folder / path)

    def show(self, path: str = "") -> str:
        """The URL."""
        return self.bucket.show(path)

    # leaving

    def sweep(self, db: Database) -> list[Swept]:
        """Weights that no version refers to, in the store; and in the cache what nobody has used for long.

        Who enters a version has its draft locked, and so has this: whichever is second sees what the other did.
        """
        swept = list(self._sweep_cache())
        for path, group in groupby(self.bucket.list(), lambda each: "/".join(each.path.split("/")[:2])):
            objects = list(group)
            if KEY.fullmatch(path.rpartition("/")[2]) and all(map(is_old, objects)) and self._take(db, path):
                swept.append(Swept(self.show(path), sum(each.bytes for each in objects)))
        return swept

    def _take(self, db: Database, path: str) -> bool:
        known = select(VersionRow.id).where(VersionRow.path == path)
        with db.session(read_only=True) as session:
            if session.scalar(known) is not None:
                return False
        with db.session() as session:
            lock_all_drafts(session)
            if session.scalar(known) is not None:
                return False
            self._remove_all(path)
        return True

    def _remove_all(self, path: str) -> None:
        for each in self.bucket.list(path):
            self.bucket.remove(each.path)

    def _sweep_cache(self) -> Iterator[Swept]:
        for folder in sorted(self.folder.glob("*/*")) + sorted(self.folder.glob("*/.*")):
            with suppress(FileNotFoundError), seized(folder) as free:
                if free and folder.stat().st_mtime < time.time() - CACHE_SECONDS:
                    size = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
                    shutil.rmtree(folder, ignore_errors=True)
                    yield Swept(folder, size)


def _sizes(folder: Path, files: list[Path]) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _damaged(version: DraftVersion, reason: str) -> WeightsDamaged:
    return WeightsDamaged(version=version.id, reason=reason)


def weight_place(named: str | None, directory: Path, cache: Path) -> LocalWeights | BucketWeights:
    """The place that ``storage.weights`` names; None is ``weights/`` in the data directory. Raises
    BadSetting."""
    if named is None:
        return LocalWeights(directory / "weights")
    folder = local_folder(named, "storage.weights")
    if folder is not None:
        return LocalWeights(folder.absolute())
    bucket = ObjectStore(named, "storage.weights")
    return BucketWeights(bucket, cache / "weights" / hashlib.sha256(bucket.url.encode()).hexdigest()[:8])
