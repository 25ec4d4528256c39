"""Drafted tokens as training examples for a head: the draft's embedding of each, and its probability of acceptance.

A token's embedding is that of the column where it was *fed*, after the tokens before it. An accepted token is part of
the text. A rejected one is not: the target's own is in its place. So the text is fed once, and each rejected
token as an additional column that has the position of its place and attends to what comes before it there:

    column      0  1  2  3  4  5 | 6     text x0 … x5; at position 3 the draft had proposed y3
    position    0  1  2  3  4  5 | 3
    token       x0 x1 x2 x3 x4 x5| y3    y3 attends to columns 0, 1, 2 and itself; nothing attends to y3

This gives each token the input that it had when it was drafted, (x_prefix, Y_1 … Y_i), in one pass a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from osd.models.encoder_decoder import require_decoder_only
from osd.models.features.base import FeatureDraft
from storage.records import RequestSamples
from trainer.distil.branching import without_branches
from trainer.distil.collate import device_of
from trainer.distil.gate import only_mistakes
from trainer.distil.teacher import Lessons
from trainer.heads.chains import depths_of, embed_chains

BATCH_TOKENS = 4096
"""Columns in an embedding batch, padding included."""
SHORT = 1e-4
"""Tolerance of stored acceptance probabilities, which were rounded to float16."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Drafted:
    """The m tokens of one text that a draft proposed and a target judged."""

    tokens: Ints
    """(n,) the text."""
    positions: Ints
    """(m,) position of each: it was proposed after tokens[:position]."""
    drafted: Ints
    """(m,) the tokens proposed; one that differs from the text was rejected."""
    chances: npt.NDArray[np.float32]
    """(m,) acceptance probability min(1, p/q) of each."""
    source: RequestSamples | None = None
    """What was recorded, of which a feature draft's chains are made again."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def refused(self) -> npt.NDArray[np.bool_]:
        """(m,) whether the token was rejected, that is, not in the text."""
        return np.asarray(self.tokens[self.positions] != self.drafted)

    @property
    def context(self) -> int:
        """Number of tokens of the text that must be fed."""
        return int((self.positions + ~self.refused).max())

    @property
    def columns(self) -> int:
        """Width of the text with its additional columns."""
        return self.context + int(self.refused.sum())


@dataclass(frozen=True, slots=True, eq=False)
class HeadExamples:
    """The N drafted tokens of several requests."""

    embeddings: Tensor
    """(N, hidden) float32, on the CPU."""
    chances: Tensor
    """(N,) float32"""
    requests: Tensor
    """(N,) index of each one's request in the sequence that was embedded."""

    def __len__(self) -> int:
        return len(self.chances)

    def first(self, count: int) -> HeadExamples:
        """Return the examples of the first ``count`` requests."""
        which = self.requests < count
        return HeadExamples(self.embeddings[which], self.chances[which], self.requests[which])


def drafted_of(samples: RequestSamples, *, chains: bool = False) -> Drafted | None:
    """Return a recorded request's drafted tokens; None where acceptance was not stored, or only for mistakes. With
    ``chains`` those alone whose round began behind the prompt's last token and one more, as a feature draft's do."""
    if samples.acceptance is None or only_mistakes(samples):
        return None
    chances, first = samples.acceptance.astype(np.float32), samples.prompt_len + 1 if chains else 1
    known = ~np.isnan(chances) & (chances >= 0) & (chances <= 1 + SHORT)
    known &= samples.positions - (depths_of(samples) if chains else 0) >= first
    if not known.any():
        return None
    positions, drafted = (column[known].astype(np.int64) for column in (samples.positions, samples.drafted))
    source = without_branches(samples) if chains else None
    return Drafted(samples.tokens.astype(np.int64), positions, drafted, chances[known].clip(0, 1), source)


@torch.no_grad()  # not inference mode: heads are trained on the result
def embed(
    model: nn.Module, items: Sequence[Drafted], between: Callable[[], None] = lambda: None,
    lessons: Lessons | None = None,
) -> HeadExamples:  # fmt: skip
    """Return the draft's embedding of every drafted token, request after request. ``items`` has at least one;
    ``lessons`` say what a feature draft reads. Raises DecoderOnly, FeaturesNotKept."""
    require_decoder_only(model, "an acceptance head", "the draft")
    found: list[tuple[int, Tensor]] = []
    for chunk in _chunks(items):
        some = [items[i] for i in chunk]
        if isinstance(model, FeatureDraft) and lessons is not None:
            sources = [item.source for item in some if item.source is not None]
            kept = [np.isin(s.positions, item.positions) for s, item in zip(sources, some, strict=True)]
            embeddings = embed_chains(sources, kept, model, lessons.teacher)
        else:
            embeddings = _embed(some, model)
        found += zip(chunk, embeddings, strict=True)
        between()
    found.sort(key=lambda pair: pair[0])
    counts = torch.tensor([len(item) for item in items])
    return HeadExamples(
        torch.cat([embedding for _, embedding in found]),
        torch.from_numpy(np.concatenate([item.chances for item in items])),
        torch.repeat_interleave(torch.arange(len(items)), counts),
    )


def _chunks(items: Sequence[Drafted]) -> Iterator[list[int]]:
    """Yield indices of requests of similar width that fit into a batch."""
    chunk: list[int] = []
    for i in sorted(range(len(items)), key=lambda i: items[i].columns):
        if chunk and (len(chunk) + 1) * items[i].columns > BATCH_TOKENS:
            yield chunk
            chunk = []
        chunk.append(i)
    if chunk:
        yield chunk


def _embed(items: Sequence[Drafted], model: nn.Module) -> list[Tensor]:
    """Embed one batch; return (m, hidden) float32 tensors on the CPU, one a request."""
    width = max(item.columns for item in items)
    tokens, positions, in_text = (np.zeros((len(items), width), np.int64) for _ in range(3))
    columns = []
    for row, item in enumerate(items):
        columns.append(_lay_out(item, tokens[row], positions[row], in_text[row]))
    fed, place = (torch.from_numpy(each).to(device_of(model)) for each in (tokens, positions))
    mask = visible(place, torch.from_numpy(in_text).to(device_of(model)).bool())
    hidden = _hidden(model, fed, place, mask)
    return [hidden[row, torch.from_numpy(each).to(hidden.device)].float().cpu() for row, each in enumerate(columns)]


def _lay_out(item: Drafted, tokens: Ints, positions: Ints, in_text: Ints) -> Ints:
    """Fill one row of a batch; return the column of each drafted token, (m,)."""
    context, refused = item.context, item.refused
    tokens[:context], positions[:context], in_text[:context] = item.tokens[:context], np.arange(context), 1
    tokens[context : item.columns] = item.drafted[refused]
    positions[context : item.columns] = item.positions[refused]
    columns = item.positions.copy()
    columns[refused] = np.arange(context, item.columns)
    return columns


def visible(positions: Tensor, in_text: Tensor) -> Tensor:
    """Return the attention mask (b, 1, w, w) for (b, w) positions and whether each column is text.

    A column attends to text at earlier positions, and to itself.
    """
    earlier = in_text[:, None, :] & (positions[:, None, :] < positions[:, :, None])
    return (earlier | torch.eye(positions.shape[1], dtype=torch.bool, device=positions.device)).unsqueeze(1)


def _hidden(model: nn.Module, tokens: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
    """Return the input of the output layer, shape (b, w, hidden); logits are computed for one column only."""
    dtype = next(model.parameters()).dtype
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)
    kept: list[Tensor] = []

    def take(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        kept.append(args[0])
        return (args[0][:, :1], *args[1:])

    with model.get_output_embeddings().register_forward_pre_hook(take):  # type: ignore[operator]
        model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False)
    return kept[0]
