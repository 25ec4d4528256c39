"""The checks of `osd doctor` for storage of samples and weights, their encryption, and version notifications."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from osd.cli.context import CommandContext
from osd.cli.finding import BROKEN, OK, WARNING, CheckResult
from storage.errors import BadSetting, OsdError
from storage.files.bucket import ObjectStore
from storage.settings import StorageSettings

HEARD_SECONDS = 10.0
READABLE_BY_OTHERS = 0o077


def places(here: CommandContext) -> Iterator[CheckResult]:
    """Check that samples, weights and the key ring exist and can be written, leaving nothing behind."""
    from storage.replay.segment_place import segment_place
    from storage.versions.bucket_weights import weight_place

    kept = here.settings.storage
    directory, cache = kept.data_directory().absolute(), kept.cache_directory().absolute()
    try:
        segments, weights = segment_place(kept.samples, directory), weight_place(kept.weights, directory, cache)
    except BadSetting as error:
        yield CheckResult("places", BROKEN, str(error), "docs/several-machines.md says what a place may be")
        return
    yield place("samples", getattr(segments, "bucket", None) or segments.show())
    yield place("weights", bucket := getattr(weights, "bucket", None) or weights.folder)
    if isinstance(bucket, ObjectStore):
        yield place("weights cache", weights.folder, "storage.cache")
    yield from encryption(kept)


def place(part: str, where: ObjectStore | Path | str, key: str = "") -> CheckResult:
    """Return the finding for a folder or a bucket."""
    if not isinstance(where, ObjectStore):
        folder = Path(where)
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return CheckResult(part, OK, f"{folder}{'' if there == folder else ', made when first used'}")
        return CheckResult(
            part, BROKEN, f"{there} cannot be written", f"set {key or f'storage.{part}'} to one of yours"
        )
    if where.url.startswith("memory:"):
        return CheckResult(
            part, WARNING, f"{where.url} ends with its process", f"set storage.{part} to a folder or s3://…"
        )
    try:
        where.probe()
    except OsdError as error:
        return CheckResult(part, BROKEN, str(error), "docs/several-machines.md says what each store needs")
    return CheckResult(part, OK, f"{where.url}, written, read and deleted")


def encryption(kept: StorageSettings) -> Iterator[CheckResult]:
    """Check the key ring, if one is configured."""
    from storage.files.cipher import open_cipher

    if kept.encryption is None:
        return
    try:
        cipher = open_cipher(kept.encryption)
    except OsdError as error:
        yield CheckResult("encryption", BROKEN, str(error), "docs/several-machines.md says how to make a key ring")
        return
    kind, _, path = kept.encryption.partition(":")
    if kind == "file" and Path(path).expanduser().stat().st_mode & READABLE_BY_OTHERS:
        yield CheckResult("encryption", WARNING, f"others may read the key ring {path}", f"chmod 600 {path}")
    elif cipher is not None:
        yield CheckResult("encryption", OK, f"writes with the key {cipher.writes_with!r} of {kept.encryption}")


def notify(here: CommandContext) -> Iterator[CheckResult]:
    """Check how servers are notified of new versions, unless the database, a finding of its own, does not answer."""
    from storage.sql.announce import Announcer
    from storage.sql.database import Database

    every = f"servers look every {here.settings.serve.swap_poll_seconds:g} s"
    try:
        with closing(Database(here.settings.storage.database_url())) as db:
            db.check()
            announcer = Announcer(db)
            heard = announcer.hears and announcer.is_heard(HEARD_SECONDS)
    except OsdError:
        return
    if heard or not announcer.hears:
        yield CheckResult("new versions", OK, f"announced by PostgreSQL; besides, {every}" if heard else every)
    else:
        mend = "give storage.url of PostgreSQL itself: poolers that share connections do not pass LISTEN on"
        yield CheckResult("new versions", WARNING, f"announcements are not heard; {every}", mend)
