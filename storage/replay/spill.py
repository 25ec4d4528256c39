"""What waits on this machine's disk while the store is away: finished requests and their totals, in files.

    spill/<time>-<id>.samples.parquet      a segment as :mod:`storage.replay.segments` writes it
    spill/<time>-<id>.outcomes.parquet     one column of JSON; <id> is the batch's, see OutcomeStore.add

Each file is written aside, synced and renamed, encrypted where segments are, and locked while it is taken in, so that
several servers may share a folder. It is deleted once the store has committed it. A process that dies in between
leaves the file, and taking it in again changes nothing: samples are known by their request, outcomes by their batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from storage import records
from storage.errors import BadExport, CannotDecrypt
from storage.files.cipher import Cipher
from storage.files.files import ASIDE, Aside, make_folder, remove, rename, seized, size_of, writing
from storage.records import Outcome, RequestSamples
from storage.replay import segments

SAMPLES, OUTCOMES, REFUSED = ".samples.parquet", ".outcomes.parquet", ".refused"
WORKER_KEY = "osd.worker"


class Totals(NamedTuple):
    """A spilled batch of outcomes."""

    outcomes: list[Outcome]
    worker: str
    batch: str


class Spill:
    """Files below a folder, ``limit`` bytes at most."""

    def __init__(self, folder: Path, limit: int, cipher: Cipher | None = None) -> None:
        self.folder, self.limit, self._cipher = folder, limit, cipher
        for path in self._found(f".*{ASIDE}"):  # of a process that was killed in mid-write
            with suppress(OSError), seized(path) as free:
                if free:
                    remove(path)

    @property
    def bytes(self) -> int:
        """Of everything here, what was refused included."""
        return sum(_size(path) for path in self._found("*"))

    def waiting(self) -> list[Path]:
        """Files to be taken in, oldest first."""
        return sorted(self._found(f"*{SAMPLES}") + self._found(f"*{OUTCOMES}"))

    def keep_samples(self, batch: Sequence[RequestSamples]) -> bool:
        """Write them; False when there is no room. Raises BadInput, StoreWriteFailed."""
        return self._write(records.new_id() + SAMPLES, segments.encode(batch, self._cipher))

    def keep_outcomes(self, totals: Totals) -> bool:
        """Write them; False when there is no room. Raises StoreWriteFailed."""
        return self._write(totals.batch + OUTCOMES, _encode(totals, self._cipher))

    def read_samples(self, path: Path) -> list[RequestSamples]:
        """What :meth:`keep_samples` wrote. Raises CannotDecrypt, BadExport."""
        with _reading(path):
            return segments.decode(path, self._cipher)

    def read_outcomes(self, path: Path) -> Totals:
        """What :meth:`keep_outcomes` wrote. Raises CannotDecrypt, BadExport."""
        with _reading(path), segments.opened(path, self._cipher) as file:
            table = file.read(use_threads=False)
            outcomes = [_outcome(json.loads(line)) for line in table["outcome"].to_pylist()]
            return Totals(outcomes, table.schema.metadata[WORKER_KEY.encode()].decode(), batch_of(path))

    def refuse(self, path: Path) -> Path:
        """Put a file where nobody takes it in any more; where it is now. Raises StoreWriteFailed."""
        to = path.with_name(path.name + REFUSED)
        with writing(path):
            rename(path, to)
        return to

    def _write(self, name: str, data: memoryview) -> bool:
        with writing(self.folder):
            if self.bytes + len(data) > self.limit:
                return False
            make_folder(self.folder, 0o700)  # it holds what people asked
            with Aside(self.folder, f"{int(1000 * records.now()):015d}-{name}") as aside:
                aside.write(data)
                aside.rename(self.folder / aside.path.name.removeprefix(".").removesuffix(ASIDE))
        return True

    def _found(self, pattern: str) -> list[Path]:
        return list(self.folder.glob(pattern))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What is wrong with a file, in osd's own words."""
    try:
        yield
    except CannotDecrypt as error:
        raise CannotDecrypt(path=path, reason=error.facts["reason"]) from None
    except Exception as error:  # Arrow raises OSError, ValueError and classes of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadExport(path=path, reason=f"It is no whole file ({reason}).") from error


def batch_of(path: Path) -> str:
    """The batch of a file of outcomes."""
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
    except FileNotFoundError:  # taken in by another server in this moment
        return 0
