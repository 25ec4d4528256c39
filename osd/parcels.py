"""What the recorder is handed, what it makes of it, and how that becomes samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from osd.reduce import Kept, Rows
from osd.row import Completion
from storage.records import RequestSamples, TokenKind, now


class Span(NamedTuple):
    """Consecutive positions of one request that one step hands over: accepted ones, but for the last."""

    request_id: str
    begin: int
    """The first position; see storage.records.Sample.position."""
    length: int
    last: TokenKind
    """What became of the last one."""
    refused: int
    """The token that was drafted there, where it was rejected; else nothing."""


class Parcel(NamedTuple):
    """What a step, or a few, hand over."""

    spans: list[Span]
    content: Tensor | list[Rows] | None
    """The spans' positions one after another: logits (m, V), or where they lie. None where there are none."""
    chances: Tensor | None
    """(m,) min(1, p/q) there; None where it follows from what was kept: in a greedy batch."""
    completions: list[Completion]

    @property
    def positions(self) -> int:
        """m."""
        return sum(span.length for span in self.spans)

    @property
    def bytes(self) -> int:
        """Memory that the parcel holds while it waits."""
        if isinstance(self.content, list):
            return sum(rows.logits.nbytes for rows in self.content)
        return 0 if self.content is None else self.content.nbytes

    def without_positions(self) -> Parcel:
        """The completions alone."""
        return Parcel([], None, None, self.completions)


class Part(NamedTuple):
    """A request's spans of one parcel, and where in ``kept`` their positions lie, one after another."""

    spans: list[Span]
    kept: Kept
    begin: int
    end: int
    chances: npt.NDArray[np.float32] | None
    """(m,) theirs; None where they follow from their kinds."""

    def of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Their positions of one of the arrays of ``kept``."""
        return array[self.begin : self.end]


def by_request(parcel: Parcel, kept: Kept, begin: int) -> Iterator[Part]:
    """A parcel's requests, each in one piece; its positions stand in ``kept`` from ``begin`` on."""
    of: dict[str, list[int]] = {}
    for number, span in enumerate(parcel.spans):
        of.setdefault(span.request_id, []).append(number)
    counts = np.array([span.length for span in parcel.spans])
    chances = None if parcel.chances is None else parcel.chances.cpu().numpy()
    if len(of) > 1:
        places = _places(counts, [number for numbers in of.values() for number in numbers])
        at = begin + places
        kept, begin = Kept(kept.ids[at], kept.logprobs[at], kept.outside[at]), 0
        chances = None if chances is None else chances[places]
    first = 0
    for numbers in of.values():
        end = first + int(counts[numbers].sum())
        spans = [parcel.spans[number] for number in numbers]
        yield Part(spans, kept, begin + first, begin + end, None if chances is None else chances[first:end])
        first = end


def _places(counts: npt.NDArray[np.int64], order: Sequence[int]) -> npt.NDArray[np.int64]:
    """(m,) where the positions of spans of these lengths lie, when the spans are taken in this order."""
    begins = (np.cumsum(counts) - counts)[order]
    lengths = counts[order]
    ends = np.cumsum(lengths)
    return np.repeat(begins - ends + lengths, lengths) + np.arange(ends[-1])


def bundle(completion: Completion, parts: Sequence[Part]) -> RequestSamples:
    """A finished request with its positions."""
    tokens = np.array([*completion.request.prompt_tokens, *completion.tokens], dtype=np.int32)
    positions, kinds, drafted = _positions([span for part in parts for span in part.spans], tokens)
    return RequestSamples(
        request_id=completion.request.id,
        route=completion.route,
        tenant=completion.request.tenant,
        draft_version=completion.rounds[-1].draft_version,
        created_at=now(),
        prompt_len=len(completion.request.prompt_tokens),
        tokens=tokens,
        positions=positions,
        kinds=kinds,
        drafted=drafted,
        topk_ids=np.concatenate([part.of(part.kept.ids) for part in parts]),
        topk_logprobs=np.concatenate([part.of(part.kept.logprobs) for part in parts]).astype(np.float16),
        outside=np.concatenate([part.of(part.kept.outside) for part in parts]),
        acceptance=acceptance_of(kinds, _chances(parts)),
    )


def _positions(
    spans: Sequence[Span], tokens: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """(m,) positions, kinds and drafted tokens. A token that was not refused stands in the text."""
    begins, counts, lasts, refused = (np.array(column) for column in list(zip(*spans, strict=True))[1:])
    ends = np.cumsum(counts)
    positions = (np.arange(ends[-1]) + np.repeat(begins - ends + counts, counts)).astype(np.int32)
    kinds = np.full(len(positions), TokenKind.ACCEPTED, np.uint8)
    kinds[ends - 1] = lasts
    drafted = tokens[positions]
    rejected = lasts == TokenKind.REJECTED
    drafted[ends[rejected] - 1] = refused[rejected]
    return positions, kinds, drafted


def _chances(parts: Sequence[Part]) -> npt.NDArray[np.float32]:
    """(m,) NaN where they follow from the kinds."""
    if all(part.chances is None for part in parts):
        return np.full(sum(part.end - part.begin for part in parts), np.nan, np.float32)
    unknown = (np.full(part.end - part.begin, np.nan, np.float32) for part in parts)
    return np.concatenate(
        [nan if part.chances is None else part.chances for part, nan in zip(parts, unknown, strict=True)]
    )


def acceptance_of(kinds: npt.NDArray[np.uint8], chances: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """(m,) min(1, p/q) of what was drafted and judged: at temperature 0, 1 where the target agreed and 0 where not.
    NaN where nothing was drafted."""
    known = np.where(np.isnan(chances), kinds == TokenKind.ACCEPTED, chances)
    return np.where(kinds == TokenKind.UNDRAFTED, np.nan, known).astype(np.float16)
