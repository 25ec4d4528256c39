"""Collation of stored samples into padded training batches. The one place in osd that shifts positions by one.

A sample's ``position`` is the index of the token it predicts: its distribution is p(· | tokens[:position]).
A causal model predicts that token with the logits at column ``position − 1``, the last token it has seen. Of a branch
the distribution after each token is kept, so that its column is the token's own (:mod:`trainer.distil.branching`).
A decoder with an encoder before it reads from ``prompt_len − 1`` on: its column is ``position − prompt_len``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from osd.models.encoder_decoder import has_encoder
from storage.errors import DecoderOnly
from storage.records import RequestSamples, TokenKind
from trainer.distil.branching import (
    SampleWeights,
    context_length,
    count,
    places,
    text_length,
    visible,
    without_branches,
)

Positions = Literal["rejected", "verified"]
Sampled = Literal["teacher", "student", "mixed"]
EQUALLY = SampleWeights()

LIKE_LENGTH = 16
"""Bucket length in tokens: requests in one bucket may be batched in any order."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingBatch:
    """b requests padded on the right to t tokens, with m positions to predict among them."""

    input_ids: Tensor
    """(b, t) int64"""
    attention_mask: Tensor
    """(b, t) int64: 1 on tokens, 0 on padding; with branches (b, 1, t, t) bool: what each token sees."""
    prompts: Tensor
    """(b,) tokens before the output; an encoder-decoder's encoder reads all but the last of them."""
    rows: Tensor
    """(m,) the request's row in the batch."""
    columns: Tensor
    """(m,) the column whose logits predict the position: position − 1; of a branch the token's own."""
    requests: Tensor
    """(m,) the request's index in the sequence that was collated."""
    tokens: Tensor
    """(m,) the token that was emitted at the position; of a branch the target's likeliest."""
    topk_ids: Tensor
    """(m, k)"""
    topk_logprobs: Tensor
    """(m, k) float32"""
    outside: Tensor
    """(m,) float32"""
    starts: Tensor
    """(m,) the prompt's last column: the first from which anything is drafted."""
    weights: Tensor
    """(m,) float32: what each weighs in the loss."""
    features: Tensor | None = None
    """(b, t, F) what a feature draft reads of the target at each column; a teacher adds it."""
    rows_logprobs: Tensor | None = None
    """(m, V) the target's whole distributions, float32, where a teacher has recomputed them."""
    position_ids: Tensor | None = None
    """(b, t) int64 where there are branches, else None: 0, 1, …"""

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device) -> TrainingBatch:
        """Return the same batch on another device."""
        there = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(self, **{name: value.to(device, non_blocking=True) for name, value in there.items()})


def select(samples: RequestSamples, positions: Positions, sampling: Sampled = "teacher") -> RequestSamples:
    """Keep the positions to learn from: those where the draft was wrong (the OSD paper), or all that were verified; by
    ``sampling`` without branches (teacher), with them alone (student), or all (mixed).

    A token that the target added after a fully accepted draft is not a mistake of the draft.
    """
    if sampling == "teacher":
        samples = without_branches(samples)
    if sampling == "student":
        return _take(samples, np.zeros(len(samples), bool))
    return samples if positions == "verified" else _take(samples, samples.kinds == TokenKind.REJECTED)


def collate(
    samples: Sequence[RequestSamples],
    indices: Sequence[int] | None = None,
    kept: int | None = None,
    weights: SampleWeights = EQUALLY,
) -> TrainingBatch:
    """Return one batch of requests that have at least one position each.

    ``indices`` are their values in ``Batch.requests``; by default 0, 1, … Requests stored with different k are cut
    to the smallest, or to ``kept``: what is cut is added to the mass outside, which is exact. Where requests have
    branches these stand behind their text.
    """
    indices = range(len(samples)) if indices is None else indices
    k = min(s.k for s in samples) if kept is None else kept
    samples = [_cut(s, k) for s in samples]
    lengths = [context_length(s) for s in samples]
    size, counts = max(lengths), torch.tensor([count(s) for s in samples])
    branches = any(s.branches is not None for s in samples)
    mask = np.stack([visible(s, size) for s in samples])[:, None] if branches else None
    plain = (torch.arange(size) < torch.tensor(lengths)[:, None]).long()
    return TrainingBatch(
        input_ids=torch.from_numpy(np.stack([_fed(s, size) for s in samples])),
        attention_mask=plain if mask is None else torch.from_numpy(mask),
        prompts=torch.tensor([s.prompt_len for s in samples]),
        rows=torch.repeat_interleave(torch.arange(len(samples)), counts),
        columns=_joined(samples, _columns, np.int64),
        requests=torch.repeat_interleave(torch.tensor(list(indices)), counts),
        tokens=_joined(samples, _said, np.int64),
        topk_ids=_joined(samples, lambda s: _both(s, "topk_ids"), np.int64),
        topk_logprobs=_joined(samples, lambda s: _both(s, "topk_logprobs"), np.float32),
        outside=_joined(samples, lambda s: _both(s, "outside"), np.float32),
        starts=torch.repeat_interleave(torch.tensor([s.prompt_len - 1 for s in samples]), counts),
        weights=_joined(samples, weights.at, np.float32),
        position_ids=torch.from_numpy(np.stack([places(s, size) for s in samples])) if branches else None,
    )


def _joined(
    samples: Sequence[RequestSamples], part: Callable[[RequestSamples], npt.NDArray[Any]], kind: type[np.generic]
) -> Tensor:
    return torch.from_numpy(np.concatenate([part(s) for s in samples]).astype(kind))


def _fed(samples: RequestSamples, size: int) -> npt.NDArray[np.int64]:
    own = np.append(samples.tokens[: text_length(samples)], [] if samples.branches is None else samples.branches.tokens)
    return np.pad(own.astype(np.int64), (0, size - len(own)))


def _columns(samples: RequestSamples) -> npt.NDArray[np.int64]:
    behind = text_length(samples) + np.arange(len(samples.branches or ()))
    return np.append(samples.positions.astype(np.int64) - 1, behind)


def _said(samples: RequestSamples) -> npt.NDArray[np.int32]:
    emitted = samples.tokens[samples.positions]
    return emitted if samples.branches is None else np.append(emitted, samples.branches.topk_ids[:, 0])


def _both(samples: RequestSamples, name: str) -> npt.NDArray[Any]:
    """Return a column of the text's positions, and then the branches'."""
    own: npt.NDArray[Any] = getattr(samples, name)
    return own if samples.branches is None else np.concatenate([own, getattr(samples.branches, name)])


def plan(
    samples: Sequence[RequestSamples], batch_tokens: int, seed: int | None = None, batch_positions: int | None = None
) -> list[list[int]]:
    """Divide requests into batches of at most ``batch_tokens`` tokens, padding included; return lists of indices.

    With ``batch_positions`` a batch is full as soon as it holds so many positions. Requests of like length go together;
    a ``seed`` shuffles which of them and in which order. A request that is longer than the budget is a batch of its
    own. Requests without positions are left out.
    """
    chance = random.Random(seed)
    lengths = {i: context_length(s) for i, s in enumerate(samples) if count(s)}
    order = list(lengths)
    if seed is not None:
        chance.shuffle(order)
    order.sort(key=lambda i: lengths[i] // LIKE_LENGTH)  # stable: requests of like length stay shuffled
    positions = {i: count(samples[i]) for i in order}
    chunks = list(_within(order, lengths, batch_tokens, positions, batch_positions or sum(positions.values()) + 1))
    if seed is not None:
        chance.shuffle(chunks)
    return chunks


def predict(model: nn.Module, batch: TrainingBatch) -> Tensor:
    """Return the logits that predict the batch's positions, shape (m, v), float32 (of a float64 model float64).

    The hidden states are selected before the output layer, by a hook on it, so that logits are computed for m positions
    and not for b × t, and the model's own changes to logits (scaling, softcapping) still apply.
    """
    head = model.get_output_embeddings()  # type: ignore[operator]
    fed, columns = _split(batch) if has_encoder(model) else (_whole(batch), batch.columns)

    def pick(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = args[0]
        flat = batch.rows * hidden.shape[1] + columns
        return (hidden.flatten(0, 1).index_select(0, flat).unsqueeze(0), *args[1:])

    with head.register_forward_pre_hook(pick):
        logits: Tensor = model(**fed, use_cache=False).logits[0]
    return logits if logits.dtype is torch.float64 else logits.float()


def _whole(batch: TrainingBatch) -> dict[str, Tensor]:
    where = {} if batch.position_ids is None else {"position_ids": batch.position_ids}
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, **where}


def _split(batch: TrainingBatch) -> tuple[dict[str, Tensor], Tensor]:
    """Return a batch as an encoder-decoder takes it, and the decoder's column that predicts each position, (m,). Raises
    DecoderOnly for a batch with branches."""
    if batch.position_ids is not None:
        raise DecoderOnly(what="learning from branches (learn.sampling)", model="The draft")
    encoded = (batch.prompts - 1).unsqueeze(1)
    lengths = batch.attention_mask.sum(1, keepdim=True) - encoded
    reach = torch.arange(int(lengths.max()), device=encoded.device)
    places = (encoded + reach).clamp(max=batch.input_ids.shape[1] - 1)
    width = int(encoded.max())
    fed = {
        "input_ids": batch.input_ids[:, :width],
        "attention_mask": (torch.arange(width, device=encoded.device) < encoded).long(),
        "decoder_input_ids": batch.input_ids.gather(1, places),
        "decoder_attention_mask": (reach < lengths).long(),
    }
    return fed, batch.columns - encoded.squeeze(1)[batch.rows]


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
    branches = samples.branches
    beyond = branches is not None and (branches.begins + branches.lengths).max() > limit
    if len(samples.tokens) <= limit and not beyond:
        return samples
    if branches is not None:
        branches = branches.where(branches.begins + branches.lengths <= limit)
    return replace(_take(samples, samples.positions < limit), tokens=samples.tokens[:limit], branches=branches)


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
        branches=None if samples.branches is None else samples.branches.cut(k),
    )
