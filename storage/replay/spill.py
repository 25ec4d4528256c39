"""Spill files: finished requests and their outcomes on this machine's disk while the store is unreachable.

    spill/<time>-<id>.samples.parquet      a segment as :mod:`storage.replay.segments` writes it
    spill/<time>-<id>.outcomes.parquet     one column of JSON; <id> is the batch's, see OutcomeStore.add

Each file is written aside, synced and renamed, encrypted where segments are, and locked while it is read back, so that
several servers may share a folder. It is deleted once the store has committed it. A process that dies in between
leaves the file, and reading it again changes nothing: samples are known by their request, outcomes by their batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from storage import records
from storage.errors import BadExport, CannotDecrypt
from storage.files.cipher import Cipher
from storage.files.files import ASIDE, TemporaryPath, make_folder, remove, rename, seized, size_of, writing
from storage.records import Outcome
from storage.redaction import Redacted
from storage.replay import segments

SAMPLES, OUTCOMES, REFUSED = ".samples.parquet", ".outcomes.parquet", ".refused"
WORKER_KEY = "osd.worker"


class Totals(NamedTuple):
    """A spilled batch of outcomes."""

    outcomes: list[Outcome]
    worker: str
    batch: str


class Spill:
    """The spill files in a folder, of ``limit`` bytes at most."""

    def __init__(self, folder: Path, limit: int, cipher: Cipher | None = None) -> None:
        self.folder, self.limit, self._cipher = folder, limit, cipher
        for path in self._found(f".*{ASIDE}"):  # left by a process that was killed while writing
            with suppress(OSError), seized(path) as free:
                if free:
                    remove(path)

    @property
    def bytes(self) -> int:
        """Size of all files here, refused ones included."""
        return sum(_size(path) for path in self._found("*"))

    def waiting(self) -> list[Path]:
        """Return the files to be read back, oldest first."""
        return sorted(self._found(f"*{SAMPLES}") + self._found(f"*{OUTCOMES}"))

    def keep_samples(self, batch: Redacted) -> bool:
        """Write samples; False when there is no room. Raises BadInput, StoreWriteFailed."""
        return self._write(records.new_id() + SAMPLES, segments.encode(batch, self._cipher))

    def keep_outcomes(self, totals: Totals) -> bool:
        """Write outcomes; False when there is no room. Raises StoreWriteFailed."""
        return self._write(totals.batch + OUTCOMES, _encode(totals, self._cipher))

    def read_samples(self, path: Path) -> Redacted:
        """Read what :meth:`keep_samples` wrote. Raises CannotDecrypt, BadExport."""
        with _reading(path):
            return Redacted(segments.decode(path, self._cipher))

    def read_outcomes(self, path: Path) -> Totals:
        """Read what :meth:`keep_outcomes` wrote. Raises CannotDecrypt, BadExport."""
        with _reading(path), segments.opened(path, self._cipher) as file:
            table = file.read(use_threads=False)
            outcomes = [_outcome(json.loads(line)) for line in table["outcome"].to_pylist()]
            return Totals(outcomes, table.schema.metadata[WORKER_KEY.encode()].decode(), batch_of(path))

    def refuse(self, path: Path) -> Path:
        """Move a file to where nobody reads it back; return its new path. Raises StoreWriteFailed."""
        to = path.with_name(path.name + REFUSED)
        with writing(path):
            rename(path, to)
        return to

    def _write(self, name: str, data: memoryview) -> bool:
        with writing(self.folder):
            if self.bytes + len(data) > self.limit:
                return False
            make_folder(self.folder, 0o700)  # it holds users' prompts
            with TemporaryPath(self.folder, f"{int(1000 * records.now()):015d}-{name}") as aside:
                aside.write(data)
                aside.rename(self.folder / aside.path.name.removeprefix(".").removesuffix(ASIDE))
        return True

    def _found(self, pattern: str) -> list[Path]:
        return list(self.folder.glob(pattern))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Translate errors of reading a file to osd's."""
    try:
        yield
    except CannotDecrypt as error:
        raise CannotDecrypt(path=path, reason=error.facts["reason"]) from None
    except Exception as error:  # Arrow raises OSError, ValueError and classes of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadExport(path=path, reason=f"It is no whole file ({reason}).") from error


def batch_of(path: Path) -> str:
    """Return the batch id of a file of outcomes."""
    return path.name.removesuffix(OUTCOMES).rpartition("-")[2]


def _encode(totals: Totals, cipher: Cipher | None) -> memoryview:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = [json.dumps(asdict(outcome)) for outcome in totals.outcomes]
    schema = pa.schema([("outcome", pa.string())], metadata={WORKER_KEY: totals.worker})
    sink = pa.BufferOutputStream()
    options = {} if cipher is None else cipher.for_writing()
    table = pa.table([pa.array(lines, pa.string())], schema=schema)
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True, **options)
    return memoryview(sink.getvalue())


def _outcome(facts: dict[str, Any]) -> Outcome:
    return Outcome(**{**facts, "positions": tuple(tuple(place) for place in facts["positions"])})


def _size(path: Path) -> int:
    try:
        return size_of(path)
    except FileNotFoundError:  # another server has just read it back
        return 0
