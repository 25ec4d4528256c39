"""Reading of some columns of a segment: the log-probabilities take nine tenths of it and are seldom asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy.typing as npt

from storage.replay.segment_files import reading
from storage.replay.segment_place import SegmentPlace
from storage.replay.segments import opened

Rows = list[npt.NDArray[Any]]


def read_columns(place: SegmentPlace, segment_id: str, path: str, names: Sequence[str]) -> list[Rows] | None:
    """Read some columns, each as one array a row; None when the segment is gone. Raises SegmentDamaged,
    CannotDecrypt."""
    try:
        with reading(place, segment_id, path) as source, opened(source, place.cipher) as file:
            table = file.read(columns=list(names), use_threads=False).combine_chunks()
            return [_rows(table[name]) for name in names]
    except FileNotFoundError:
        return None


def _rows(column: Any) -> Rows:
    if not column.num_chunks:
        return []
    chunk = column.chunk(0)
    values = chunk.values.to_numpy()
    return [values[start:end] for start, end in pairwise(chunk.offsets.to_numpy().tolist())]
