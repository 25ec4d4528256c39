"""The tokens that were drafted and emitted in the newest kept requests; of segments only these columns are read.

What was drafted behind a refused token is not kept: *proposed* here means judged by the target.
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
    """Positions of ``requests`` requests, one after another: (n,) arrays."""

    requests: int
    kinds: Ints
    """TokenKind."""
    drafted: Ints
    """The token that the draft proposed; the emitted one where it proposed none."""
    emitted: Ints

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def whole(self) -> bool:
        """Whether accepted tokens are among them: not where only refusals were recorded."""
        return not len(self) or bool((self.kinds == TokenKind.ACCEPTED).any())


def judged(db: Database, place: SegmentPlace, window: Window, limit: int) -> JudgedPositions:
    """Of the newest ``limit`` requests in the window. ``place`` has the segments. Raises SegmentDamaged."""
    with db.session(read_only=True) as session:
        places = sorted(_places(session, window, limit))
    parts = [part for path, group in groupby(places, key=lambda row: row[:2]) for part in _parts(place, path, group)]
    columns = [
        np.concatenate([np.zeros(0, np.int64), *column]) for column in (zip(*parts, strict=True) if parts else [[]] * 3)
    ]
    return JudgedPositions(len(parts), *columns)


def _places(session: Session, window: Window, limit: int) -> list[tuple[str, str, int]]:
    """(segment id, path, row) of the newest requests."""
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
    """(kinds, drafted, emitted) of each request; none when a purge has replaced the segment in the meantime."""
    segment_id, path = segment
    columns = read_columns(place, segment_id, path, ("tokens", "positions", "kinds", "drafted"))
    for row in [] if columns is None else [each[2] for each in places]:
        tokens, positions, kinds, drafted = (column[row].astype(np.int64) for column in columns or ())
        yield kinds, drafted, tokens[positions]


def count(tokens: Ints, which: Sequence[bool] | npt.NDArray[np.bool_], size: int) -> Ints:
    """(size,) how often each token is among those chosen."""
    return np.bincount(tokens[which], minlength=size)
