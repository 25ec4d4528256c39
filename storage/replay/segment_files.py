"""Segments in their place: written whole, then entered in the index; read back, or refused as damaged."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import insert
from sqlalchemy.orm import Session

from storage import records
from storage.errors import CannotDecrypt, PlaceUnreachable, SegmentDamaged
from storage.files.bucket import ObjectStore
from storage.files.cipher import Cipher
from storage.files.places import FilePlace, LocalFolder
from storage.records import RequestSamples
from storage.replay import segments
from storage.sql.tables import SegmentRow


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment that is written but not yet indexed: the rows that the index needs."""

    segment: dict[str, Any]
    requests: list[dict[str, Any]]
    """One row a request, in the batch's order: request_id, segment_id, row, bytes, hidden_bytes."""
    place: FilePlace

    def enter(self, session: Session) -> None:
        """Insert the segment's row. Raises StoreError when a sweep took it first; either waits for the other on this
        row."""
        session.execute(insert(SegmentRow), self.segment)
        self.place.require(self.segment["path"])


class SegmentFiles:
    """The segments of a place, encrypted by ``cipher`` if there is one."""

    def __init__(self, place: LocalFolder | ObjectStore, cipher: Cipher | None = None) -> None:
        self.place, self.cipher = place, cipher

    def write(self, batch: Sequence[RequestSamples], index: Callable[[NewSegment], None]) -> str:
        """Write a batch whole, then call ``index``, which commits it; return the segment's id.

        When ``index`` fails the file is deleted, unless the database went away in mid-commit: then only a sweep can
        tell whether the file is in the index.
        """
        segment_id, created_at = records.new_id(), records.now()
        path = f"{time.strftime('%Y%m%d', time.gmtime(created_at))}/{segment_id}.parquet"
        data = segments.encode(batch, self.cipher)
        with self.place.holding(path, data):
            segment, requests = _rows(segment_id, path, created_at, batch, data)
            index(NewSegment(segment, requests, self.place))
        return segment_id

    def read(self, segment_id: str, path: str) -> list[RequestSamples]:
        """Return every request of a segment.

        Raises FileNotFoundError when it is gone, SegmentDamaged when it is not whole, CannotDecrypt, PlaceUnreachable.
        """
        with self.reading(segment_id, path) as source:
            return segments.decode(source, self.cipher)

    def read_columns(self, segment_id: str, path: str, names: Sequence[str]) -> list[list[segments.Array]] | None:
        """Return some columns, each as one array a row; None when the segment is gone. Raises SegmentDamaged,
        CannotDecrypt."""
        try:
            with self.reading(segment_id, path) as source, segments.opened(source, self.cipher) as file:
                table = file.read(columns=list(names), use_threads=False).combine_chunks()
                return [segments.split_rows(table[name]) for name in names]
        except FileNotFoundError:
            return None

    def read_whole(self, row: SegmentRow) -> list[RequestSamples]:
        """Return every request of a segment, each byte of which is what was written, those of its headers too, of which
        Parquet has no checksums; raises as :meth:`read`."""
        import pyarrow as pa

        with self.reading(row.id, row.path) as source:
            data = source.read_bytes() if isinstance(source, Path) else source.read()
            if row.digest not in (None, hashlib.sha256(data).hexdigest()):
                raise ValueError("its bytes are not those that were written")
            return segments.decode(pa.BufferReader(data), self.cipher)

    @contextmanager
    def reading(self, segment_id: str, path: str) -> Iterator[Any]:
        """Yield what Arrow reads a segment from, and translate errors to osd's; raises as :meth:`read`."""
        try:
            yield self.place.source(path)
        except (FileNotFoundError, PlaceUnreachable):
            raise
        except CannotDecrypt as error:
            raise CannotDecrypt(path=self.place.show(path), reason=error.facts["reason"]) from None
        except Exception as error:  # Arrow raises OSError, ValueError and classes of its own
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise self.damaged(segment_id, path, reason) from error

    def damaged(self, segment_id: str, path: str, reason: str = "the file is missing") -> SegmentDamaged:
        """Return the error for a segment that is not what was written."""
        return SegmentDamaged(path=self.place.show(path), segment=segment_id, reason=reason)


def _rows(
    segment_id: str, path: str, created_at: float, batch: Sequence[RequestSamples], data: memoryview
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    ends = np.rint(np.cumsum(segments.shares(batch)) * len(data)).astype(int)
    segment = {
        "id": segment_id,
        "path": path,
        "created_at": created_at,
        "requests": len(batch),
        "positions": sum(len(samples) for samples in batch),
        "bytes": len(data),
        "digest": hashlib.sha256(data).hexdigest(),
    }
    requests = [
        {
            "request_id": samples.request_id,
            "segment_id": segment_id,
            "row": row,
            "bytes": int(share),
            "hidden_bytes": round(share * segments.hidden_share(samples)),
        }
        for row, (samples, share) in enumerate(zip(batch, np.diff(ends, prepend=0), strict=True))
    ]
    return segment, requests


def prompt_hash(samples: RequestSamples) -> int:
    """Return 64 signed bits that are equal for equal prompts."""
    prompt = samples.tokens[: samples.prompt_len].astype("<i4", copy=False)
    return int.from_bytes(hashlib.sha256(prompt.tobytes()).digest()[:8], "big", signed=True)


def is_held_out(samples: RequestSamples, share: float) -> bool:
    """Return whether the request is held out for judging candidates; decided by its prompt, so equal prompts agree."""
    return prompt_hash(samples) % 2**64 < share * 2**64
