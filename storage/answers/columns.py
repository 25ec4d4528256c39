"""Some of a segment's columns: the log-probabilities are nine tenths of it, and seldom what a question is about."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy.typing as npt

from storage.errors import SegmentDamaged

Rows = list[npt.NDArray[Any]]


def read_columns(folder: Path, segment_id: str, path: str, names: Sequence[str]) -> list[Rows] | None:
    """For each column one array a row; None when the segment is gone. Raises SegmentDamaged."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(folder / path, page_checksum_verification=True) as file:
            table = file.read(columns=list(names), use_threads=False).combine_chunks()
        return [_rows(table[name]) for name in names]
    except FileNotFoundError:
        return None
    except Exception as error:  # Arrow raises OSError, ValueError, KeyError and classes of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SegmentDamaged(path=folder / path, reason=reason, segment=segment_id) from error


def _rows(column: Any) -> Rows:
    if not column.num_chunks:
        return []
    chunk = column.chunk(0)
    values = chunk.values.to_numpy()
    return [values[start:end] for start, end in pairwise(chunk.offsets.to_numpy().tolist())]
