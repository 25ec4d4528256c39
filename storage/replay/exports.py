"""Export of samples to a single Parquet file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from storage.errors import BadInput
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
    path: Path, batches: Iterable[list[RequestSamples]], cipher: Cipher | None = None, *, overwrite: bool,
    hidden: bool = False,
) -> Exported:  # fmt: skip
    """Stream batches into one Parquet file, a row group each, written aside and renamed. ``hidden``: with a column of
    hidden states.

    Raises BadInput when the file exists, StoreWriteFailed.
    """
    import pyarrow.parquet as pq

    if path.exists() and not overwrite:
        raise BadInput(reason=f"{path} exists; give another name or allow it to be replaced.")
    requests = positions = 0
    with TemporaryPath(path.parent, path.name) as aside, writing(path):
        options = segments.writer_options(cipher, hidden=hidden)
        with pq.ParquetWriter(aside.path, segments.schema(hidden=hidden), **options) as writer:
            for batch in filter(None, batches):
                writer.write_table(segments.table(batch, hidden=hidden))
                requests += len(batch)
                positions += sum(len(samples) for samples in batch)
        sync_path(aside.path)
        aside.rename(path)
    return Exported(path, requests, positions, path.stat().st_size)
