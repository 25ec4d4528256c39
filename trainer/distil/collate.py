"""Collation of stored samples into padded training batches. The one place in osd that shifts positions by one.

A sample's ``position`` is the index of the token it predicts: its distribution is p(· | tokens[:position]).
A causal model predicts that token with the logits at column ``position − 1``, the last token it has seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from storage.records import RequestSamples, TokenKind

Positions = Literal["rejected", "verified"]

LIKE_LENGTH = 16
"""Bucket length in tokens: requests in one bucket may be batched in any order."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingBatch:
    """b requests padded on the right to t tokens, with m positions to predict among them."""

    input_ids: Tensor
    """(b, t) int64"""
    attention_mask: Tensor
    """(b, t) int64: 1 on tokens, 0 on padding."""
    rows: Tensor
    """(m,) the request's row in the batch."""
    columns: Tensor
    """(m,) the column whose logits predict the position: position − 1."""
    requests: Tensor
    """(m,) the request's index in the sequence that was collated."""
    tokens: Tensor
    """(m,) the token that was emitted at the position."""
    topk_ids: Tensor
    """(m, k)"""
    topk_logprobs: Tensor
    """(m, k) float32"""
    outside: Tensor
    """(m,) float32"""
    starts: Tensor
    """(m,) the prompt's last column: the first from which anything is drafted."""
    features: Tensor | None = None
    """(b, t, F) what a feature draft reads of the target at each column; a teacher adds it."""
    rows_logprobs: Tensor | None = None
    """(m, V) the target's whole distributions, float32, where a teacher has recomputed them."""

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device) -> TrainingBatch:
        """Return the same batch on another device."""
        there = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(self, **{name: value.to(device, non_blocking=True) for name, value in there.items()})


def select(samples: RequestSamples, positions: Positions) -> RequestSamples:
    """Keep the positions to learn from: those where the draft was wrong (the OSD paper), or all that were verified.

    A token that the target added after a fully accepted draft is not a mistake of the draft.
    """
    if positions == "verified":
        return samples
    return _take(samples, samples.kinds == TokenKind.REJECTED)


def collate(
    samples: Sequence[RequestSamples], indices: Sequence[int] | None = None, kept: int | None = None
) -> TrainingBatch:
    """Return one batch of requests that have at least one position each.

    ``indices`` are their values in ``Batch.requests``; by default 0, 1, … Requests stored with different k are cut
    to the smallest, or to ``kept``: what is cut is added to the mass outside, which is exact.
    """
    indices = range(len(samples)) if indices is None else indices
    k = min(s.topk_ids.shape[1] for s in samples) if kept is None else kept
    samples = [_cut(s, k) for s in samples]
    lengths = [context_length(s) for s in samples]
    input_ids = np.zeros((len(samples), max(lengths)), np.int64)
    for row, (s, length) in enumerate(zip(samples, lengths, strict=True)):
        input_ids[row, :length] = s.tokens[:length]
    counts = [len(s) for s in samples]
    positions = np.concatenate([s.positions for s in samples]).astype(np.int64)
    return TrainingBatch(
        input_ids=torch.from_numpy(input_ids),
        attention_mask=(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long(),
        rows=torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(counts)),
        columns=torch.from_numpy(positions - 1),
        requests=torch.repeat_interleave(torch.tensor(list(indices)), torch.tensor(counts)),
        tokens=torch.from_numpy(np.concatenate([s.tokens[s.positions] for s in samples]).astype(np.int64)),
        topk_ids=torch.from_numpy(np.concatenate([s.topk_ids for s in samples]).astype(np.int64)),
        topk_logprobs=torch.from_numpy(np.concatenate([s.topk_logprobs for s in samples]).astype(np.float32)),
        outside=torch.from_numpy(np.concatenate([s.outside for s in samples]).astype(np.float32)),
        starts=torch.repeat_interleave(torch.tensor([s.prompt_len - 1 for s in samples]), torch.tensor(counts)),
    )


def plan(
    samples: Sequence[RequestSamples], batch_tokens: int, seed: int | None = None, batch_positions: int | None = None
) -> list[list[int]]:
    """Divide requests into batches of at most ``batch_tokens`` tokens, padding included; return lists of indices.

    With ``batch_positions`` a batch is full as soon as it holds so many positions. Requests of like length go together;
    a ``seed`` shuffles which of them and in which order. A request that is longer than the budget is a batch of its
    own. Requests without positions are left out.
    """
    chance = random.Random(seed)
    lengths = {i: context_length(s) for i, s in enumerate(samples) if len(s)}
    order = list(lengths)
    if seed is not None:
        chance.shuffle(order)
    order.sort(key=lambda i: lengths[i] // LIKE_LENGTH)  # stable: requests of like length stay shuffled
    positions = {i: len(samples[i]) for i in order}
    chunks = list(_within(order, lengths, batch_tokens, positions, batch_positions or sum(positions.values()) + 1))
    if seed is not None:
        chance.shuffle(chunks)
    return chunks


def context_length(samples: RequestSamples) -> int:
    """Return the number of tokens that predict the last position; later ones are not fed."""
    return int(samples.positions[-1])


def predict(model: nn.Module, batch: TrainingBatch) -> Tensor:
    """Return the logits that predict the batch's positions, shape (m, v), float32 (of a float64 model float64).

    The hidden states are selected before the output layer, by a hook on it, so that logits are computed for m positions
    and not for b × t, and the model's own changes to logits (scaling, softcapping) still apply.
    """
    head = model.get_output_embeddings()  # type: ignore[operator]

    def pick(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = args[0]
        flat = batch.rows * hidden.shape[1] + batch.columns
        return (hidden.flatten(0, 1).index_select(0, flat).unsqueeze(0), *args[1:])

    handle = head.register_forward_pre_hook(pick)
    try:
        output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False)
    finally:
        handle.remove()
    logits: Tensor = output.logits[0]
    return logits if logits.dtype is torch.float64 else logits.float()


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's weights."""
    return next(model.parameters()).device


def _within(
    order: list[int], lengths: dict[int, int], batch_tokens: int, positions: dict[int, int], enough: int
) -> Iterator[list[int]]:
    """Yield runs of ``order`` whose padded size is within the budget, ended once they have ``enough`` positions."""
    chunk: list[int] = []
    longest = 0
    for i in order:
        longest = max(longest, lengths[i])
        full = (len(chunk) + 1) * longest > batch_tokens or sum(positions[j] for j in chunk) >= enough
        if chunk and full:
            yield chunk
            chunk, longest = [], lengths[i]
        chunk.append(i)
    if chunk:
        yield chunk


def until(samples: RequestSamples, limit: int) -> RequestSamples:
    """Return what was recorded at a request's first ``limit`` tokens: a draft may know fewer positions than its
    target."""
    if len(samples.tokens) <= limit:
        return samples
    return replace(_take(samples, samples.positions < limit), tokens=samples.tokens[:limit])


def _take(samples: RequestSamples, which: npt.NDArray[np.bool_]) -> RequestSamples:
    kept = ("positions", "kinds", "drafted", "topk_ids", "topk_logprobs", "outside")
    acceptance = None if samples.acceptance is None else samples.acceptance[which]
    states = None if samples.hidden_states is None else samples.hidden_states[which]
    return replace(
        samples, acceptance=acceptance, hidden_states=states, **{name: getattr(samples, name)[which] for name in kept}
    )


def _cut(samples: RequestSamples, k: int) -> RequestSamples:
    if samples.topk_ids.shape[1] == k:
        return samples
    cut_off = np.exp(samples.topk_logprobs[:, k:].astype(np.float32)).sum(axis=1)
    return replace(
        samples,
        topk_ids=samples.topk_ids[:, :k],
        topk_logprobs=samples.topk_logprobs[:, :k],
        outside=(samples.outside + cut_off).clip(0, 1),
    )
