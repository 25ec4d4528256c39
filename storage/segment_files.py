"""Segments on the disk: written whole, then handed to the index; read back, or refused as damaged."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage import records, segments
from storage.errors import SegmentDamaged
from storage.files import Aside, taken_back_on_error
from storage.records import RequestSamples


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment that is on the disk and not yet in the index: the rows that the index needs."""

    segment: dict[str, Any]
    requests: list[dict[str, Any]]
    """One a request, in the batch's order: request_id, segment_id, row, bytes."""


def write_segment(folder: Path, batch: Sequence[RequestSamples], index: Callable[[NewSegment], None]) -> str:
    """Write a batch aside, sync it, rename it, then call ``index``, which commits it; returns the segment's id.

    When ``index`` fails the file is taken back, unless the database went away in mid-commit: then only a sweep can
    tell whether the file is in the index.
    """
    segment_id, created_at = records.new_id(), records.now()
    day = time.strftime("%Y%m%d", time.gmtime(created_at))
    data = segments.encode(batch)
    with Aside(folder / day, f"{segment_id}.parquet") as aside:
        aside.write(data)
        aside.rename(folder / day / f"{segment_id}.parquet")
        with taken_back_on_error(aside):
            index(_rows(segment_id, f"{day}/{segment_id}.parquet", created_at, batch, len(data)))
    return segment_id


def _rows(segment_id: str, path: str, created_at: float, batch: Sequence[RequestSamples], size: int) -> NewSegment:
    ends = np.rint(np.cumsum(segments.shares(batch)) * size).astype(int)
    segment = {
        "id": segment_id,
        "path": path,
        "created_at": created_at,
        "requests": len(batch),
        "positions": sum(len(samples) for samples in batch),
        "bytes": size,
    }
    requests = [
        {"request_id": samples.request_id, "segment_id": segment_id, "row": row, "bytes": int(share)}
        for row, (samples, share) in enumerate(zip(batch, np.diff(ends, prepend=0), strict=True))
    ]
    return NewSegment(segment, requests)


def read_segment(folder: Path, segment_id: str, path: str) -> list[RequestSamples]:
    """Every request of a segment. Raises FileNotFoundError when it is gone, SegmentDamaged when it is not whole."""
    try:
        return segments.decode(folder / path)
    except FileNotFoundError:
        raise
    except Exception as error:  # Arrow raises OSError, ValueError and classes of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SegmentDamaged(path=folder / path, reason=reason, segment=segment_id) from error


def prompt_hash(samples: RequestSamples) -> int:
    """64 bits, signed: equal for equal prompts."""
    prompt = samples.tokens[: samples.prompt_len].astype("<i4", copy=False)
    return int.from_bytes(hashlib.sha256(prompt.tobytes()).digest()[:8], "big", signed=True)


def is_held_out(samples: RequestSamples, share: float) -> bool:
    """Whether the request judges candidates instead of training them: by its prompt, so equal prompts agree."""
    return prompt_hash(samples) % 2**64 < share * 2**64
