"""Backup of a whole store to a folder, while it is used, and restoring it elsewhere.

    backup.json        what it is: format, schema, dialect, counts
    SHA256SUMS         every file's digest, as sha256sum writes and checks them
    osd.db             SQLite's metadata by its own backup call, or
    osd.dump           PostgreSQL's by pg_dump
    segments/          samples, as they lie in their place (encrypted ones stay so)
    weights/           drafts' weights

The metadata of one moment is read, then every file that it names is copied at once; files never change, so what is
there is right. Where one was deleted meanwhile (retention, a purge), the metadata is read again, and only files that
came since are still to be copied. So the folder has every file that its metadata names, and no other, and is checked.

Restoring checks every file before it writes any, puts files first and the metadata last, and takes back what it put
after an error. What a killed restore put is in nobody's way: the next one puts the same files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import URL, Connection, inspect, select, text
from sqlalchemy.orm import Session

from storage import records
from storage.distribution import osd_version
from storage.errors import BadInput, StoreError, WeightsDamaged
from storage.files.files import TemporaryPath, sync_path, writing
from storage.files.places import FilePlace, LocalFolder
from storage.records import DraftVersion, VersionState
from storage.replay.segment_files import SegmentFiles
from storage.settings import Settings
from storage.sql import schema
from storage.sql.database import Database
from storage.sql.drivers import parse_url, sqlite_file
from storage.sql.ledger import to_record
from storage.sql.tables import SegmentRow, VersionRow
from storage.store import Store, lay_out
from storage.versions import weights

FORMAT = 2
FACTS, SUMS, SQLITE, DUMP = "backup.json", "SHA256SUMS", "osd.db", "osd.dump"
TRIES = 10
"""Looks at the metadata before it is given up: a deletion meanwhile takes another one."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup holds."""

    format: int
    at: float
    osd: str
    dialect: str
    schema: str
    segments: int
    requests: int
    versions: int
    """Versions with weights."""
    bytes: int


@dataclass(frozen=True, slots=True)
class _Named:
    """The files that a copy of the metadata names."""

    segments: list[SegmentRow]
    versions: list[DraftVersion]
    schema: str


def back_up(store: Store, url: str, destination: Path, say: Say = lambda _: None) -> Backup:
    """Write a backup into a new folder, which appears once it is whole and was checked. ``url`` is the database's.

    Raises BadInput when the folder exists, SegmentDamaged, WeightsDamaged, StoreWriteFailed, PlaceUnreachable.
    """
    if destination.exists():
        raise BadInput(reason=f"{destination} exists; give the name of a new folder.")
    with TemporaryPath(destination.absolute().parent, destination.name, folder=True) as aside, writing(aside.path):
        named = _copy_all(store, parse_url(url), aside.path, say)
        _drop_others(aside.path, named)
        say("checking")
        _check_segments(SegmentFiles(LocalFolder(aside.path / "segments"), store.samples.files.cipher), named.segments)
        size = sum(path.stat().st_size for path in aside.path.rglob("*") if path.is_file())
        requests = sum(row.requests for row in named.segments)
        counts = len(named.segments), requests, len(named.versions), size
        facts = Backup(FORMAT, records.now(), osd_version(), store.db.dialect, named.schema, *counts)
        (aside.path / FACTS).write_text(json.dumps(asdict(facts), indent=2) + "\n", "utf-8")
        (aside.path / SUMS).write_text("".join(_sums(aside.path)), "utf-8")
        weights.sync_tree(aside.path)
        aside.rename(destination.absolute())
    return facts


def restore(settings: Settings, source: Path, say: Say = lambda _: None) -> Backup:
    """Restore a backup into the store that the settings name, which must be empty, and note it in the audit trail.

    Raises BadInput for what is no backup, of another kind of database, or where there is something already; StoreError
    for a backup that is not whole, or whose schema this osd cannot open. Nothing is left then.
    """
    facts, url = read_facts(source), parse_url(settings.storage.database_url())
    with closing(lay_out(settings)) as store:
        _require_fits(store, facts, source, url)
        say("checking the backup")
        _check_sums(source)
        say("copying samples and weights")
        with _placed(store, source):
            say("restoring the metadata")
            _restore_database(source, url)
        store.db.upgrade()
        store.trail.note("db restore", source.name, asdict(facts))
    return facts


def read_facts(source: Path) -> Backup:
    """Return what a backup holds. Raises BadInput for what is none, or one of a newer osd."""
    try:
        facts = Backup(**json.loads((source / FACTS).read_text("utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise BadInput(reason=f"{source} is no backup of `osd db backup` ({FACTS}: {error}).") from None
    if facts.format != FORMAT:
        raise BadInput(
            reason=f"{source} is of format {facts.format}, this osd reads {FORMAT}; take the osd that wrote it."
        )
    return facts


def _copy_all(store: Store, url: URL, folder: Path, say: Say) -> _Named:
    """Copy metadata and files until no file is missing that the copy of the metadata names. Raises StoreError."""
    missing: list[str] = []
    for number in range(1, TRIES + 1):
        say("reading the metadata" + (f", {number} times" if number > 1 else ""))
        with _snapshot(store.db, url, folder) as (named, copy):
            say(f"copying {len(named.segments)} segments and the weights of {len(named.versions)} versions")
            places = _places(store)
            missing = [row.path for row in named.segments if not _take_segment(places["segments"], row, folder)]
            missing += [one.id for one in named.versions if not _take_weights(places["weights"], one, folder)]
            if not missing:
                say("copying the metadata")
                copy()
                return named
    raise StoreError(reason=f"Not copied, because they are missing or not what was written: {', '.join(missing[:5])}.")


@contextmanager
def _snapshot(db: Database, url: URL, folder: Path) -> Iterator[tuple[_Named, Callable[[], None]]]:
    """Yield what the metadata names at one moment, and what copies the metadata of that moment into a folder."""
    if (file := sqlite_file(url)) is not None:
        yield _copy_sqlite(file, folder / SQLITE), lambda: None
        return
    with db.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection, connection.begin():
        snapshot = connection.execute(text("SELECT pg_export_snapshot()")).scalar_one()
        with Session(connection) as session:
            named = _named(session, connection)
        dump = "pg_dump", "--format=custom", f"--snapshot={snapshot}", f"--file={folder / DUMP}"
        yield named, lambda: _run(url, *dump)


def _copy_sqlite(file: Path, target: Path) -> _Named:
    target.unlink(missing_ok=True)
    with closing(sqlite3.connect(file)) as live, closing(sqlite3.connect(target)) as copy:
        live.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")
    copied = Database(f"sqlite:///{target}")
    try:
        with copied.session(read_only=True) as session:
            return _named(session, session.connection())
    finally:
        copied.close()


def _named(session: Session, connection: Connection) -> _Named:
    segments = list(session.scalars(select(SegmentRow).order_by(SegmentRow.created_at)))
    session.expunge_all()  # they outlive the session
    there = select(VersionRow).where(VersionRow.deleted_at.is_(None)).order_by(VersionRow.draft, VersionRow.number)
    return _Named(segments, [to_record(row) for row in session.scalars(there)], schema.found(connection) or "")


def _places(store: Store) -> dict[str, FilePlace]:
    """Return the places of samples and weights, by their folder in a backup."""
    return {"segments": store.samples.files.place, "weights": store.versions.files.place}


def _take_segment(place: FilePlace, row: SegmentRow, folder: Path) -> bool:
    """Copy a segment; False where it is no longer there."""
    return _take(place, row.path, folder / "segments" / row.path)


def _take(place: FilePlace, path: str, target: Path) -> bool:
    """Copy a file, unless it was copied before; False where it is no longer there."""
    if target.exists():
        return True
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.get_file(path, target)
    except FileNotFoundError:
        target.unlink(missing_ok=True)
        return False
    return True


def _take_weights(place: FilePlace, version: DraftVersion, folder: Path) -> bool:
    """Copy a version's files; False where they are no longer there, or not whole. Damaged ones come as they are."""
    target = folder / "weights" / version.path
    if not target.exists():
        for each in place.list(version.path):
            if not _take(place, each.path, folder / "weights" / each.path):
                break
    if version.state is VersionState.QUARANTINED:
        return True
    judged = version.state not in (VersionState.CANDIDATE, VersionState.REJECTED)
    try:
        weights.verify(target, version.id, version.digest, ready=judged)
    except WeightsDamaged:
        shutil.rmtree(target, ignore_errors=True)
        return False
    return True


def _drop_others(folder: Path, named: _Named) -> None:
    """Delete files that an earlier copy of the metadata named, and this one does not."""
    segments = {row.path for row in named.segments}
    versions = {version.path for version in named.versions}
    for each in LocalFolder(folder / "segments").list():
        if each.path not in segments:
            (folder / "segments" / each.path).unlink()
    for draft in (folder / "weights").glob("*/*"):
        if draft.relative_to(folder / "weights").as_posix() not in versions:
            shutil.rmtree(draft)


def _check_segments(files: SegmentFiles, rows: Sequence[SegmentRow]) -> None:
    for row in rows:
        found = files.read_whole(row)
        if (len(found), sum(map(len, found))) != (row.requests, row.positions):
            raise files.damaged(row.id, row.path, f"it holds {len(found)} requests, its index says {row.requests}")


def _sums(folder: Path) -> Iterator[str]:
    """Yield the line of every file in SHA256SUMS, which has none itself."""
    for each in LocalFolder(folder).list():
        if each.path != SUMS:
            with (folder / each.path).open("rb") as file:
                yield f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {each.path}\n"


def _check_sums(source: Path) -> None:
    """Raise StoreError unless every file is there as it was written, and no other."""
    try:
        wrong = set(_sums(source)) ^ set((source / SUMS).read_text("utf-8").splitlines(keepends=True))
    except (OSError, ValueError) as error:
        raise StoreError(reason=f"{source} is not whole ({error}). Nothing was restored.") from error
    if wrong:
        names = ", ".join(sorted({line.strip().partition("  ")[2] for line in wrong})[:5])
        raise StoreError(reason=f"{source} is not whole: missing, changed or added: {names}. Nothing was restored.")


def _require_fits(store: Store, facts: Backup, source: Path, url: URL) -> None:
    """Raise BadInput unless the store is empty and of the backup's kind of database, SchemaOutdated for a schema that
    this osd cannot open."""
    if facts.dialect != store.db.dialect:
        reason = f"The backup is of {facts.dialect}, and storage.url names {store.db.dialect}; restore it into its kind"
        raise BadInput(reason=f"{reason} of database.")
    if str(facts.schema) in schema.BEFORE_FIRST or str(facts.schema) > schema.HEAD:
        raise schema.mismatch(f"in {source}", facts.schema)
    file = sqlite_file(url)
    if file is not None and any(Path(f"{file}{end}").exists() for end in ("", "-wal")):
        raise BadInput(reason=f"There is a database at {file} already; restore into a data directory of its own.")
    if file is None and (tables := inspect(store.db.engine).get_table_names()):
        raise BadInput(reason=f"{store.db.url} has {len(tables)} tables already; restore into an empty database.")
    for (name, place), key in zip(_places(store).items(), ("storage.samples", "storage.weights"), strict=True):
        if {each.path for each in place.list()} - {each.path for each in LocalFolder(source / name).list()}:
            raise BadInput(reason=f"There is something at {place.show()} already ({key}); name an empty place.")


@contextmanager
def _placed(store: Store, source: Path) -> Iterator[None]:
    """Put samples and weights in their places; take them back after an error."""
    files = [(place, name, each.path) for name, place in _places(store).items()
             for each in LocalFolder(source / name).list()]  # fmt: skip
    try:
        for place, name, path in files:
            place.put_file(source / name / path, path)
        for place in _places(store).values():
            if isinstance(place, LocalFolder) and place.folder.exists():
                weights.sync_tree(place.folder)  # before metadata name them
        yield
    except BaseException:
        for place, _, path in files:
            with suppress(StoreError):
                place.remove(path)
        raise


def _restore_database(source: Path, url: URL) -> None:
    if (file := sqlite_file(url)) is not None:
        with TemporaryPath(file.absolute().parent, file.name) as aside, writing(file):
            shutil.copyfile(source / SQLITE, aside.path)
            sync_path(aside.path)
            aside.rename(file.absolute())
        return
    _run(url, "pg_restore", "--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction",
         f"--dbname={_libpq(url)}", str(source / DUMP), connects=False)  # fmt: skip


def _run(url: URL, program: str, *arguments: str, connects: bool = True) -> None:
    """Run one of PostgreSQL's programs; its password goes by the environment, where no list of processes shows it."""
    command = [program, *arguments, *([_libpq(url)] if connects else [])]
    environment = {**os.environ, **({"PGPASSWORD": str(url.password)} if url.password else {})}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise StoreError(reason=f"{program} is not installed; it comes with PostgreSQL's client programs.") from None
    if done.returncode:
        raise StoreError(reason=f"{program} ended with status {done.returncode}: {done.stderr.strip()[-500:]}")


def _libpq(url: URL) -> str:
    """Return the URL as libpq reads it, without its password."""
    return url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
