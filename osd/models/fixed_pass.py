"""Passes of one shape, made of operations on the device alone, so that they can be captured.

A compiled pass takes the same inputs: what each token sees of its row, and where its keys and values are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osd.models.attention_metadata import AttentionMetadata, Layout
from osd.models.kv_cache import RaggedCache
from osd.models.ragged_attention import ALIGNED, AttentionGroup

Body = Callable[[Tensor, RaggedCache, Tensor | None], Tensor]
"""Tokens (B, T) and a cache aimed at them → logits (B, T, V); with ``last`` (B,) those after one token of each row."""
Choose = Callable[[Tensor, int], tuple[Tensor, Tensor | None]]
"""Logits (B, 1, V) and the step → the tokens chosen (B,), and in a batch that samples what they were drawn from,
(B, V)."""

WIDTHS = (1, 2, 3, 5, 9, 17)
"""Tokens of a row: what is between two is padded. A pass over few tokens takes what reading the weights takes."""
LEAST_SPAN = 256
"""Positions that are read: this many, twice as many …, or all of a row."""
MOST_TOKENS = 256
"""Tokens of a pass, beyond which computing takes longer than launching."""


class PassShape(NamedTuple):
    """What a graph is captured for."""

    rows: int
    width: int
    """Tokens of a row in the first pass."""
    span: int
    """Positions that are read."""
    drafts: int = 0
    """Tokens that are chosen, one after another; 0 for a pass whose logits are wanted."""
    hidden: bool = False
    """Whether the final hidden states are wanted, too."""
    features: tuple[int, ...] = ()
    """The hidden states of every position that the cache keeps."""
    choice: Any = None
    """How they are chosen: the class of :class:`Chooser` and what it is the same for."""


class Chooser(Protocol):
    """How the rows of a batch choose tokens, as something that can be captured."""

    @property
    def kind(self) -> Any:
        """What batches must have in common that share a graph; None for the likeliest tokens."""

    def inputs(self, drafts: int) -> Sequence[Tensor]:
        """Return this batch's numbers for the next so many tokens, (B, …) each."""

    def over(self, inputs: Sequence[Tensor]) -> Choose:
        """Return the choice by such numbers, of any batch of this kind."""


def shape_of(
    rows: int, width: int, end: int, cache: RaggedCache, drafts: int, chooser: Chooser | None
) -> PassShape | None:
    """Return the bucket of such a pass; None where it is too large for one."""
    wide = next((each for each in WIDTHS if each >= width), None)
    many = min(1 << (rows - 1).bit_length(), cache.rows)
    if wide is None or many * wide > MOST_TOKENS:
        return None
    span = LEAST_SPAN
    while span < end:
        span *= 2
    kind = chooser.kind if chooser else None
    kept = tuple(cache.features)
    return PassShape(many, wide, min(span, cache.stride), drafts, cache.wants_embedding, kept, kind)


class FixedPass:
    """Passes of one shape, as operations on the device alone."""

    def __init__(self, body: Body, cache: RaggedCache, shape: PassShape) -> None:
        self._body, self._cache, self._shape = body, cache, shape
        device, dtype = cache.kept[0].device, cache.kept[0].dtype
        self._ramp = torch.arange(-(-shape.span // ALIGNED) * ALIGNED + shape.width, device=device)
        self._seen = torch.zeros((), dtype=dtype, device=device)
        self._hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)

    def whole(self, tokens: Tensor, places: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the logits and, where the cache wants them, the final hidden states of a pass, (rows, width, …)."""
        logits = self._pass(tokens, places[0].unsqueeze(1), places[1].unsqueeze(1), None)
        return logits, self._cache.embedding if self._shape.hidden else None

    def chain(self, tokens: Tensor, places: Tensor, choose: Choose) -> tuple[Tensor | None, ...]:
        """Compute the tokens of a chain, what they were drawn from, and the logits, (rows, drafts, …)."""
        start, count = places[0].unsqueeze(1), places[1].unsqueeze(1)
        logits = self._pass(tokens, start, count, (count[:, 0] - 1).clamp(min=0))
        here, one = start + count, count.clamp(max=1)
        said, chosen, drawn = [logits], [], []
        for step in range(self._shape.drafts):
            token, q = choose(said[-1], step)
            chosen.append(token)
            drawn.append(q)
            if step + 1 < self._shape.drafts:
                said.append(self._pass(token.unsqueeze(1), here + step, one, None))
        q = torch.stack([each for each in drawn if each is not None], dim=1) if drawn[0] is not None else None
        return torch.stack(chosen, dim=1), q, torch.cat(said, dim=1)

    def _pass(self, tokens: Tensor, start: Tensor, count: Tensor, last: Tensor | None) -> Tensor:
        """Aim the cache at tokens (rows, T) from ``start`` (rows, 1) on, of which ``count`` (rows, 1) count, and run
        the body."""
        (rows, width), span, cache = tokens.shape, self._shape.span, self._cache
        columns = start + self._ramp[:width]
        slots = torch.where(self._ramp[:width] < count, cache.layout.find(0, columns), cache.spare).flatten()
        visible = self._ramp[: -(-span // ALIGNED) * ALIGNED] <= columns.unsqueeze(-1)
        mask = torch.where(visible, self._seen, self._hidden).unsqueeze(1)[..., :span]
        group = AttentionGroup(slice(0, rows), slice(0, rows * width), width, span - width, span, mask, None)
        known = columns.clamp(max=min(cache.limit, cache.length) - 1)
        before = getattr(cache, "feed", None)
        cache.feed = AttentionMetadata(0, [group], known, slots, mask, span, columns)
        try:
            return self._body(tokens, cache, last)
        finally:
            if before is not None:
                cache.feed = before


def likeliest(logits: Tensor, step: int) -> tuple[Tensor, None]:
    """Choose the likeliest token of each row."""
    return logits[:, 0].argmax(-1), None


Array = npt.NDArray[Any]
CompiledInputs = tuple[Array, Array, Array, Array, Array]
"""Arrays over n tokens, row after row: (n,) int64 the slots where their keys and values go, their positions, the slots
where their rows begin, and how many slots from there on they see; (n, T) bool which of the T slots behind those they
see, themselves included. T is 0 where there is no tree."""


def of_rows(first: int, starts: Sequence[int], counts: Sequence[int], length: int) -> CompiledInputs:
    """Return the inputs of chains: ``counts[i]`` tokens from position ``starts[i]`` on, in the rows from ``first`` on,
    of ``length`` slots each. Each token sees all up to itself."""
    begins = np.array([(first + row) * length for row, n in enumerate(counts) for _ in range(n)])
    positions = np.array([start + i for start, n in zip(starts, counts, strict=True) for i in range(n)])
    return begins + positions, positions, begins, positions + 1, np.empty((len(positions), 0), np.bool_)


def of_trees(starts: Sequence[int], counts: Sequence[int], length: int, layout: Layout) -> CompiledInputs:
    """Return the inputs of trees: the first ``counts[i]`` nodes in each of the first rows, with roots at ``starts[i]``.
    A node sees the text before the root, and its ancestors."""
    depths, seen = (each.numpy() for each in layout)
    rows, nodes = np.nonzero(np.arange(depths.shape[1]) < np.array(counts)[:, None])
    begins, texts = rows * length, np.array(starts)[rows]
    return begins + texts + nodes, texts + depths[rows, nodes], begins, texts, seen[rows, nodes]


class PassInput(NamedTuple):
    """The tokens of a pass: ``counts[i]`` of them from position ``starts[i]`` on, in each row from ``first`` on; with a
    layout they are trees, in the first rows."""

    first: int
    starts: Sequence[int]
    counts: Sequence[int]
    layout: Layout | None = None

    def sight(self, length: int) -> CompiledInputs:
        """Return the compiled pass's inputs for rows of ``length`` slots."""
        if self.layout is None:
            return of_rows(self.first, self.starts, self.counts, length)
        return of_trees(self.starts, self.counts, length, self.layout)
