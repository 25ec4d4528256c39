"""The tokens of the newest stored requests: which a draft learned, which were judged, which its traffic uses.

Of segments only the columns that are asked for are read: the log-probabilities take nine tenths and are seldom asked
for. Tokens drafted after a rejected one are not stored: *proposed* here means judged by the target.

Section 5.5 of online speculative decoding (Figure 7, Table 6): a token's precision is how often it was accepted
divided by how often it was proposed; its recall is how often it was accepted divided by how often it appears in the
answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.orm import Session

from storage.errors import BadInput
from storage.outcomes.outcome_window import Window
from storage.records import TokenKind, ratio
from storage.replay.sample_index import meeting, of_draft
from storage.replay.segment_files import SegmentFiles
from storage.replay.segments import Array
from storage.sql.database import Database, chunks
from storage.sql.tables import SampleRow, SegmentRow
from storage.store import Store

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


def judged(db: Database, files: SegmentFiles, window: Window, limit: int) -> JudgedPositions:
    """Read the positions of the newest ``limit`` requests in the window from their segments. Raises SegmentDamaged."""
    places = sorted(db.read(_places, window, limit))
    parts = [part for path, group in groupby(places, key=lambda row: row[:2]) for part in _parts(files, path, group)]
    columns = [
        np.concatenate([np.zeros(0, np.int64), *column]) for column in (zip(*parts, strict=True) if parts else [[]] * 3)
    ]
    return JudgedPositions(len(parts), *columns)


def _places(session: Session, window: Window, limit: int) -> list[tuple[str, str, int]]:
    """Return (segment id, path, row) of the newest requests in the window."""
    columns = (SegmentRow.id, SegmentRow.path, SampleRow.row)
    query = select(*columns).join_from(SampleRow, SegmentRow, SampleRow.segment_id == SegmentRow.id)
    newest = SampleRow.created_at.desc(), SampleRow.request_id
    wanted = meeting(route=window.route, version=window.version, since=window.since, before=window.until)
    if window.draft is not None:
        wanted.append(of_draft(window.draft))
    rows = session.execute(query.where(*wanted).order_by(*newest).limit(limit))
    return [(segment_id, path, row) for segment_id, path, row in rows]


def _parts(files: SegmentFiles, segment: tuple[str, ...], places: Iterator[Any]) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (kinds, drafted, emitted) of each request; nothing when a purge has replaced the segment meanwhile."""
    segment_id, path = segment
    columns = files.read_columns(segment_id, path, ("tokens", "positions", "kinds", "drafted"))
    for row in [] if columns is None else [each[2] for each in places]:
        tokens, positions, kinds, drafted = (column[row].astype(np.int64) for column in columns or ())
        yield kinds, drafted, tokens[positions]


TOP = 100
"""Number of most frequent tokens examined, as in the paper."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Counts of one token in one set of requests."""

    proposed: int
    accepted: int
    appeared: int

    @property
    def precision(self) -> float | None:
        """Accepted ÷ proposed."""
        return ratio(self.accepted, self.proposed)

    @property
    def recall(self) -> float | None:
        """Accepted ÷ appeared."""
        return ratio(self.accepted, self.appeared)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token's counts before and after."""

    rank: int
    """1 for the token that appears most often in both sets together."""
    token: int
    before: TokenCounts
    after: TokenCounts

    @property
    def precision_gain(self) -> float | None:
        """Precision after − before; None where one side never proposed the token."""
        return _gain(self.before.precision, self.after.precision)

    @property
    def recall_gain(self) -> float | None:
        """Recall after − before; None where the token never appeared on one side."""
        return _gain(self.before.recall, self.after.recall)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as one flat dictionary."""
        facts: dict[str, Any] = {"rank": self.rank, "token": self.token}
        for measure in ("precision", "recall"):
            for side in ("before", "after"):
                facts[f"{measure}_{side}"] = getattr(getattr(self, side), measure)
            facts[f"{measure}_gain"] = getattr(self, f"{measure}_gain")
        for side in ("before", "after"):
            facts |= {f"{name}_{side}": value for name, value in asdict(getattr(self, side)).items()}
        return facts


def tokens(before: JudgedPositions, after: JudgedPositions, top: int = TOP) -> list[TokenRow]:
    """Return the ``top`` most frequent tokens of both sets together, most frequent first.

    Raises BadInput where a set has no requests, or rejections alone, which do not show what was accepted.
    """
    for name, side in (("before", before), ("after", after)):
        _require(name, side)
    return ranked(before, after, top)


def ranked(before: JudgedPositions, after: JudgedPositions, top: int = TOP) -> list[TokenRow]:
    """Return :func:`tokens` of positions that are known to be whole, also where a draft was never right."""
    size = 1 + max(int(column.max(initial=0)) for side in (before, after) for column in (side.drafted, side.emitted))
    one, other = _counted(before, size), _counted(after, size)
    appeared = one[2] + other[2]
    order = np.argsort(-appeared, kind="stable")[:top]
    order = order[appeared[order] > 0]
    return [
        TokenRow(rank, int(token), TokenCounts(*map(int, one[:, token])), TokenCounts(*map(int, other[:, token])))
        for rank, token in enumerate(order, start=1)
    ]


def _require(name: str, side: JudgedPositions) -> None:
    if not side.requests:
        raise BadInput(reason=f"There are no kept requests {name}; ask for a longer time, or another version.")
    if not side.whole:
        raise BadInput(
            reason=f"Of the requests {name} only refused tokens were kept: set serve.record to 'verified' for this."
        )


def _counted(side: JudgedPositions, size: int) -> Ints:
    """Return how often each token was proposed, accepted and emitted, shape (3, size)."""
    accepted = side.kinds == TokenKind.ACCEPTED
    proposed = side.kinds != TokenKind.UNDRAFTED
    parts = side.drafted[proposed], side.emitted[accepted], side.emitted
    return np.stack([np.bincount(tokens, minlength=size) for tokens in parts])


def _gain(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


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
    for (segment, path), group in groupby(_segment_rows(store, ids), key=lambda place: place[:2]):
        columns, places = store.samples.files.read_columns(segment, path, ("tokens",)), list(group)
        if columns is None:
            continue  # a purge has replaced it meanwhile
        for _, _, row, length in places:
            tokens = columns[0][row]
            answers += _occurrences(tokens[length:], vocab_size)
            prompts += _occurrences(tokens[:length], vocab_size)
    return TokenUse(answers, prompts)


def _segment_rows(store: Store, request_ids: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """Return (segment id, path, row, length of the prompt), a segment's rows together."""
    columns = SegmentRow.id, SegmentRow.path, SampleRow.row, SampleRow.prompt_len
    query = select(*columns).join_from(SampleRow, SegmentRow, SampleRow.segment_id == SegmentRow.id)
    found: list[tuple[str, str, int, int]] = []
    with store.db.session(read_only=True) as session:
        for ids in chunks(request_ids):
            rows = session.execute(query.where(SampleRow.request_id.in_(ids)))
            found += [(segment, path, row, length) for segment, path, row, length in rows]
    return sorted(found)


def _occurrences(tokens: Array, size: int) -> Counts:
    return np.bincount(tokens[(tokens >= 0) & (tokens < size)], minlength=size)
