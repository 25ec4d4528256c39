"""Export of samples to a single Parquet file, and import of such files, written here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from storage.errors import BadExport, BadInput, CannotDecrypt
from storage.files.cipher import Cipher
from storage.files.files import TemporaryPath, sync_path, writing
from storage.records import RequestSamples
from storage.replay import segments


@dataclass(frozen=True, slots=True)
class Exported:
    """The totals of an export."""

    path: Path
    requests: int
    positions: int
    bytes: int


def write_export(
    path: Path, batches: Iterable[list[RequestSamples]], cipher: Cipher | None = None, *, overwrite: bool
) -> Exported:
    """Stream batches into one Parquet file, a row group each, written aside and renamed.

    Raises BadInput when the file exists, StoreWriteFailed.
    """
    import pyarrow.parquet as pq

    if path.exists() and not overwrite:
        raise BadInput(reason=f"{path} exists; give another name or allow it to be replaced.")
    requests = positions = 0
    with TemporaryPath(path.parent, path.name) as aside, writing(path):
        with pq.ParquetWriter(aside.path, segments.schema(), **segments.writer_options(cipher)) as writer:
            for batch in filter(None, batches):
                writer.write_table(segments.table(batch))
                requests += len(batch)
                positions += sum(len(samples) for samples in batch)
        sync_path(aside.path)
        aside.rename(path)
    return Exported(path, requests, positions, path.stat().st_size)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The counts of an import."""

    requests: int
    positions: int
    known: int
    """Requests not stored: known already, forgotten, or not allowed by their tenant or the redaction hook."""


def is_table(path: Path) -> bool:
    """Return whether a file is a Parquet file of somebody else's: readable, and without the mark and the columns of
    `osd replay export`."""
    import pyarrow.parquet as pq

    try:
        found = pq.read_schema(path)
    except Exception:  # damaged or encrypted, or none: an import says which
        return False
    return segments.FORMAT_KEY.encode() not in (found.metadata or {}) and "topk_ids" not in found.names


def read_export(path: Path, cipher: Cipher | None = None) -> Iterator[list[RequestSamples]]:
    """Yield the requests of an exported file in batches. Raises BadExport, CannotDecrypt."""
    try:
        for batch in segments.decode_groups(path, cipher):
            for each in batch:
                segments.require_shapes(each)
            if batch:
                yield batch
    except CannotDecrypt:
        raise
    except FileNotFoundError:
        raise BadExport(path=path, reason="There is no such file.") from None
    except segments.NewerFormat as error:
        raise BadExport(path=path, reason=f"{error} Update osd, or export it anew with the older one.") from None
    except Exception as error:  # Arrow raises OSError, ValueError and classes of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadExport(path=path, reason=f"It is no whole file of `osd replay export` ({reason}).") from error
