"""Assembles samples: positions of requests under way, grouped by request once it has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from osd.recording.extract import Block, Ints, Spans, runs
from osd.recording.topk import TopKLogprobs
from osd.sequence import Completion
from storage.records import RequestSamples, TokenKind


class SampleAssembler:
    """Collects blocks in order and makes samples of them. Used by one thread at a time."""

    def __init__(self, target: str | None = None) -> None:
        """``target``: digest of the target whose distributions these are."""
        self._target = target
        self._blocks: list[Block] = []

    def __len__(self) -> int:
        """Count the positions that are held."""
        return sum(len(block.chances) for block in self._blocks)

    def add(self, block: Block | None) -> None:
        """Add a block; None adds nothing."""
        if block is not None:
            self._blocks.append(block)

    def samples_of(self, completions: Sequence[Completion]) -> list[RequestSamples]:
        """Return the samples of requests that ended and drop their positions; cancelled requests give none."""
        if not completions or not self._blocks:
            return []
        whole = _joined(self._blocks)
        number = {completion.request.id: i for i, completion in enumerate(completions)}
        of = np.array([number.get(owner, -1) for owner in whole.spans.owners])
        order = np.argsort(of, kind="stable")
        under_way = int((of < 0).sum())
        self._blocks = [_picked(whole, order[:under_way])] if under_way else []
        ended = of[order[under_way:]]
        return list(_samples(completions, ended, _picked(whole, order[under_way:]), self._target)) if len(ended) else []


def _joined(blocks: Sequence[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    spans, kept, chances, hidden = zip(*blocks, strict=True)
    owners = [owner for some in spans for owner in some.owners]
    columns = [np.concatenate(column) for column in list(zip(*spans, strict=True))[1:]]
    widths = [np.concatenate(column) for column in zip(*kept, strict=True)]
    states = None if any(some is None for some in hidden) else np.concatenate(hidden)
    return Block(Spans(owners, *columns), TopKLogprobs(*widths), np.concatenate(chances), states)


def _picked(block: Block, order: Ints) -> Block:
    """Select spans of a block, in this order."""
    owners, *columns = block.spans
    spans = Spans([owners[i] for i in order.tolist()], *(column[order] for column in columns))
    begins = np.cumsum(block.spans.lengths) - block.spans.lengths
    at = runs(begins[order], spans.lengths)
    # take, unlike [], releases the interpreter
    kept = TopKLogprobs(*(np.take(array, at, axis=0) for array in block.kept))  # type: ignore[arg-type]
    states = None if block.hidden is None else np.take(block.hidden, at, axis=0)
    return Block(spans, kept, np.take(block.chances, at), states)


def _samples(
    completions: Sequence[Completion], ended: Ints, block: Block, target: str | None
) -> Iterator[RequestSamples]:
    """Yield the samples of completions; ``ended`` (n,) is the index of each span's completion, ascending."""
    spans, kept = block.spans, block.kept
    positions = runs(spans.begins, spans.lengths).astype(np.int32)
    lasts = np.cumsum(spans.lengths) - 1
    kinds = np.full(len(positions), TokenKind.ACCEPTED, np.uint8)
    kinds[lasts] = spans.lasts
    logprobs, acceptance = kept.logprobs.astype(np.float16), acceptance_of(kinds, block.chances)
    edges = [0, *np.cumsum(np.bincount(ended, spans.lengths, len(completions))).astype(np.int64).tolist()]
    rejected = spans.lasts == TokenKind.REJECTED
    refused = np.zeros(len(positions), np.int32)
    refused[lasts[rejected]] = spans.refused[rejected]
    for completion, begin, end in zip(completions, edges[:-1], edges[1:], strict=True):
        if begin == end or completion.finish_reason == "cancelled":
            continue
        tokens = np.array(completion.prompt + completion.tokens, np.int32)
        mine = slice(begin, end)
        yield RequestSamples(
            request_id=completion.request.id,
            route=completion.route,
            tenant=completion.request.tenant,
            draft_version=completion.rounds[-1].draft_version,
            created_at=completion.outcomes[-1].finished_at,
            prompt_len=len(completion.prompt),
            tokens=tokens,
            positions=positions[mine],
            kinds=kinds[mine],
            # a token that was not refused stands in the text
            drafted=np.where(kinds[mine] == TokenKind.REJECTED, refused[mine], tokens[positions[mine]]),
            topk_ids=kept.ids[mine],
            topk_logprobs=logprobs[mine],
            outside=kept.outside[mine],
            acceptance=acceptance[mine],
            target=target,
            hidden_states=None if block.hidden is None else block.hidden[mine],
        )


def acceptance_of(kinds: npt.NDArray[np.uint8], chances: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Return min(1, p/q) of what was drafted and verified: at temperature 0, 1 where the target agreed, else 0: (m,).
    NaN where nothing was drafted."""
    known = np.where(np.isnan(chances), kinds == TokenKind.ACCEPTED, chances)
    return np.where(kinds == TokenKind.UNDRAFTED, np.nan, known).astype(np.float16)
