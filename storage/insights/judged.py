"""Drafted and emitted tokens of the newest stored requests; only these columns of the segments are read.

Tokens drafted after a rejected one are not stored: *proposed* here means judged by the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.orm import Session

from storage.insights.columns import read_columns
from storage.outcomes.outcome_window import Window
from storage.records import TokenKind
from storage.replay.sample_index import of_draft
from storage.replay.segment_place import SegmentPlace
from storage.sql.database import Database
from storage.sql.tables import SampleRow, SegmentRow

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JudgedPositions:
    """The token positions of ``requests`` requests, concatenated: (n,) arrays."""

    requests: int
    kinds: Ints
    """(n,) values of TokenKind."""
    drafted: Ints
    """(n,) tokens that the draft proposed; the emitted token where it proposed none."""
    emitted: Ints

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def whole(self) -> bool:
        """Whether accepted tokens are included; False where only rejections were recorded."""
        return not len(self) or bool((self.kinds == TokenKind.ACCEPTED).any())


def judged(db: Database, place: SegmentPlace, window: Window, limit: int) -> JudgedPositions:
    """Read the positions of the newest ``limit`` requests in the window from their segments. Raises SegmentDamaged."""
    with db.session(read_only=True) as session:
        places = sorted(_places(session, window, limit))
    parts = [part for path, group in groupby(places, key=lambda row: row[:2]) for part in _parts(place, path, group)]
    columns = [
        np.concatenate([np.zeros(0, np.int64), *column]) for column in (zip(*parts, strict=True) if parts else [[]] * 3)
    ]
    return JudgedPositions(len(parts), *columns)


def _places(session: Session, window: Window, limit: int) -> list[tuple[str, str, int]]:
    """Return (segment id, path, row) of the newest requests in the window."""
    columns = (SegmentRow.id, SegmentRow.path, SampleRow.row)
    query = select(*columns).join_from(SampleRow, SegmentRow, SampleRow.segment_id == SegmentRow.id)
    newest = SampleRow.created_at.desc(), SampleRow.request_id
    rows = session.execute(query.where(*_wanted(window)).order_by(*newest).limit(limit))
    return [(segment_id, path, row) for segment_id, path, row in rows]


def _wanted(window: Window) -> Iterator[Any]:
    if window.since is not None:
        yield SampleRow.created_at >= window.since
    if window.until is not None:
        yield SampleRow.created_at < window.until
    if window.route is not None:
        yield SampleRow.route == window.route
    if window.version is not None:
        yield SampleRow.draft_version == window.version
    if window.draft is not None:
        yield of_draft(window.draft)


def _parts(place: SegmentPlace, segment: tuple[str, ...], places: Iterator[Any]) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (kinds, drafted, emitted) of each request; nothing when a purge has replaced the segment meanwhile."""
    segment_id, path = segment
    columns = read_columns(place, segment_id, path, ("tokens", "positions", "kinds", "drafted"))
    for row in [] if columns is None else [each[2] for each in places]:
        tokens, positions, kinds, drafted = (column[row].astype(np.int64) for column in columns or ())
        yield kinds, drafted, tokens[positions]


def count(tokens: Ints, which: Sequence[bool] | npt.NDArray[np.bool_], size: int) -> Ints:
    """Return how often each token id occurs among the selected positions, shape (size,)."""
    return np.bincount(tokens[which], minlength=size)
