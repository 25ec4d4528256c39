"""What the recorder is handed, what it makes of it, and how that becomes samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from osd.reduce import Kept
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
    content: Tensor | Kept | None
    """The spans' positions one after another: logits (m, V), or what is kept of them. None where there are none."""
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
        if isinstance(self.content, Tensor):
            return self.content.numel() * self.content.element_size()
        return self.content.bytes if self.content else 0

    @property
    def unreduced(self) -> int:
        """Positions that still are logits."""
        return len(self.content) if isinstance(self.content, Tensor) else 0

    def without_positions(self) -> Parcel:
        """The completions alone."""
        return Parcel([], None, None, self.completions)


class Part(NamedTuple):
    """A span, and where in ``kept`` its positions lie."""

    span: Span
    kept: Kept
    begin: int
    chances: npt.NDArray[np.float32] | None
    """(m,) the span's; None where they follow from its kinds."""

    def of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Its positions of one of the arrays of ``kept``."""
        return array[self.begin : self.begin + self.span.length]


def bundle(completion: Completion, parts: Sequence[Part]) -> RequestSamples:
    """A finished request with its positions."""
    tokens = np.array([*completion.request.prompt_tokens, *completion.tokens], dtype=np.int32)
    positions, kinds, drafted = _positions([part.span for part in parts], tokens)
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
    _, begins, counts, lasts, refused = (np.array(column) for column in zip(*spans, strict=True))
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
        return np.full(sum(part.span.length for part in parts), np.nan, np.float32)
    unknown = (np.full(part.span.length, np.nan, np.float32) for part in parts)
    return np.concatenate(
        [nan if part.chances is None else part.chances for part, nan in zip(parts, unknown, strict=True)]
    )


def acceptance_of(kinds: npt.NDArray[np.uint8], chances: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """(m,) min(1, p/q) of what was drafted and judged: at temperature 0, 1 where the target agreed and 0 where not.
    NaN where nothing was drafted."""
    known = np.where(np.isnan(chances), kinds == TokenKind.ACCEPTED, chances)
    return np.where(kinds == TokenKind.UNDRAFTED, np.nan, known).astype(np.float16)
