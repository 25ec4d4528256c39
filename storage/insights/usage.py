"""Which tokens a draft's traffic uses: counts over its newest kept requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from storage.insights.columns import read_columns
from storage.replay.sample_index import chunks
from storage.replay.segments import Array
from storage.sql.tables import SampleRow, SegmentRow
from storage.store import Store

Counts = npt.NDArray[np.int64]


class TokenUse(NamedTuple):
    """How often each token id occurs, (V,) each."""

    answers: Counts
    prompts: Counts


def token_use(store: Store, draft: str, vocab_size: int, requests: int) -> TokenUse:
    """Count the tokens of the newest requests that a line of a draft may learn from, held-out ones left out.

    Only tokens are read. Ids beyond ``vocab_size`` are not counted. Raises SegmentDamaged, StoreError.
    """
    ids = store.samples.recent(draft, limit=requests, holdout=False)
    answers, prompts = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)
    for (segment, path), group in groupby(_places(store, ids), key=lambda place: place[:2]):
        columns, places = read_columns(store.samples.place, segment, path, ("tokens",)), list(group)
        if columns is None:
            continue  # a purge has replaced it meanwhile
        for _, _, row, length in places:
            tokens = columns[0][row]
            answers += _counted(tokens[length:], vocab_size)
            prompts += _counted(tokens[:length], vocab_size)
    return TokenUse(answers, prompts)


def _places(store: Store, request_ids: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """Return (segment id, path, row, length of the prompt), a segment's rows together."""
    columns = SegmentRow.id, SegmentRow.path, SampleRow.row, SampleRow.prompt_len
    query = select(*columns).join_from(SampleRow, SegmentRow, SampleRow.segment_id == SegmentRow.id)
    found: list[tuple[str, str, int, int]] = []
    with store.db.session(read_only=True) as session:
        for ids in chunks(request_ids):
            rows = session.execute(query.where(SampleRow.request_id.in_(ids)))
            found += [(segment, path, row, length) for segment, path, row, length in rows]
    return sorted(found)


def _counted(tokens: Array, size: int) -> Counts:
    return np.bincount(tokens[(tokens >= 0) & (tokens < size)], minlength=size)
