"""Export of samples to a single Parquet file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
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
    path: Path, read: Callable[[], Iterable[list[RequestSamples]]], cipher: Cipher | None = None, *, overwrite: bool,
    hidden: bool = False,
) -> Exported:  # fmt: skip
    """Stream the batches that ``read`` yields into one Parquet file, a row group each, written aside and renamed.
    ``hidden``: with a column of hidden states.

    Where a request has branches the file is begun anew, with columns for them: without, older releases can read it.
    Raises BadInput when the file exists, StoreWriteFailed.
    """
    if path.exists() and not overwrite:
        raise BadInput(reason=f"{path} exists; give another name or allow it to be replaced.")
    with TemporaryPath(path.parent, path.name) as aside, writing(path):
        write = partial(_write, aside.path, cipher=cipher, hidden=hidden)
        counts = write(read(), branches=False) or write(read(), branches=True)
        assert counts is not None
        sync_path(aside.path)
        aside.rename(path)
    return Exported(path, *counts, path.stat().st_size)


def _write(
    path: Path, batches: Iterable[list[RequestSamples]], *, cipher: Cipher | None, hidden: bool, branches: bool
) -> tuple[int, int] | None:
    """Return the numbers of requests and positions; None where some have branches, and there are no columns for
    them."""
    import pyarrow.parquet as pq

    requests = positions = 0
    options = segments.writer_options(cipher, hidden=hidden, branches=branches)
    with pq.ParquetWriter(path, segments.schema(hidden=hidden, branches=branches), **options) as writer:
        for batch in filter(None, batches):
            if not branches and segments.have_branches(batch):
                return None
            writer.write_table(segments.table(batch, hidden=hidden, branches=branches))
            requests += len(batch)
            positions += sum(len(samples) for samples in batch)
    return requests, positions
