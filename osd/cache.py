"""A key-value cache for rows of different length, on unmodified Hugging Face models.

One preallocated tensor a layer; a forward pass scatters its new keys and values to (row, position)
and attends over the first ``span`` positions. Which positions a query may see stands in an explicit
mask (key position ≤ query position), so a row is rolled back by shortening a number: what lies
beyond a row's length is garbage that no query sees and the next pass overwrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

if TYPE_CHECKING:
    from osd.lora.bank import Mix


@dataclass(frozen=True, slots=True)
class Feed:
    """Where one forward pass reads and writes: rows ``first`` … ``first + B − 1``, T tokens each."""

    first: int
    positions: torch.Tensor
    """(B, T) int64: position of each token fed; consecutive within a row, or depths in a tree."""
    slots: torch.Tensor
    """(B · T,) int64, of a packed pass (N,): where keys and values are written, row · length + position; a tree's
    tokens one after another."""
    mask: torch.Tensor
    """(B, 1, T, span) additive: 0 where the query may see the key, the dtype's minimum elsewhere."""
    span: int
    """Positions that are read: the longest row, this pass included."""
    packed: torch.Tensor | None = None
    """(N,) int64: which of the B · T tokens are computed at all; None for all of them."""


class RaggedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers' own base is untyped
    """Keys and values of one layer: (rows · length, heads, head_dim) each, allocated on first use."""

    is_sliding = False

    def __init__(self, cache: RaggedCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cache = cache
        self.kept: list[torch.Tensor] = []

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate for the shapes seen: (B, heads, T, head_dim)."""
        slots = self.cache.rows * self.cache.length
        self.kept = [new.new_zeros(slots, new.shape[1], new.shape[3]) for new in (key_states, value_states)]
        self.keys, self.values = self.kept
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (B, heads, T, head_dim) at the feed's slots; return the rows' first ``span`` positions
        as (B, heads, span, head_dim) views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, heads, count, _ = key_states.shape
        flat = [new.transpose(1, 2).reshape(rows * count, heads, -1) for new in (key_states, value_states)]
        return self.keep(flat[0], flat[1], rows)

    def keep(self, keys: torch.Tensor, values: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for (B · T or N, heads, head_dim), in the order of the feed's slots, of B = ``rows`` rows."""
        if not self.is_initialized:
            self.lazy_initialization(keys.unsqueeze(2), values.unsqueeze(2))
        feed, windows = self.cache.feed, []
        for kept, new in zip(self.kept, (keys, values), strict=True):
            kept.index_copy_(0, feed.slots, new)
            lines = kept.view(-1, self.cache.length, *new.shape[1:])
            windows.append(lines[feed.first : feed.first + rows, : feed.span].transpose(1, 2))
        return windows[0], windows[1]

    def copy(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy keys and values between slots (n,); what is overwritten was read before."""
        for kept in self.kept:
            kept.index_copy_(0, targets, kept[sources])

    def grow(self, rows: int) -> None:
        """Room for so many rows in all; what is kept of the first stays."""
        if self.is_initialized:
            for i, old in enumerate(self.kept):
                self.kept[i] = old.new_zeros(rows * self.cache.length, *old.shape[1:])
                self.kept[i][: len(old)] = old
            self.keys, self.values = self.kept

    def drop(self) -> None:
        """Let go of everything."""
        self.kept, self.keys, self.values, self.is_initialized = [], None, None, False

    @property
    def bytes(self) -> int:
        """Memory that is taken."""
        return sum(kept.numel() * kept.element_size() for kept in self.kept)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of one row over another."""
        begin, end = source * self.cache.length, target * self.cache.length
        for kept in self.kept:
            kept[end : end + length] = kept[begin : begin + length]

    def swap_rows(self, one: int, other: int, length: int) -> None:
        """Exchange the first ``length`` positions of two rows."""
        for kept in self.kept:
            lines = kept.view(-1, self.cache.length, *kept.shape[1:])
            aside = lines[one, :length].clone()
            lines[one, :length] = lines[other, :length]
            lines[other, :length] = aside

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.feed.span, 0

    def get_seq_length(self) -> int:
        return 0  # positions are always explicit, so nothing is derived from a length

    def get_max_length(self) -> int:
        return self.cache.length

    get_max_cache_shape = get_max_length  # its name in the first versions of transformers 5


class RaggedCache(Cache):
    """The cache of one model: ``rows`` rows of ``length`` positions."""

    def __init__(
        self, layers: int, rows: int, length: int, device: torch.device, dtype: torch.dtype, limit: int
    ) -> None:
        """``limit`` is the first position that the model does not know; only padding is ever fed there."""
        self.rows, self.length, self.limit = rows, length, limit
        self._ramp = torch.arange(length, device=device)
        self._row_base = self._bases()
        self._seen = torch.zeros((), dtype=dtype, device=device)
        self._hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)
        self.feed: Feed
        self.wants_embedding = False
        """Whether somebody reads ``embedding``: a forward pass that would have to work for it asks."""
        self.embedding: torch.Tensor | None = None
        """(B, 1 or T, D): what the newest pass gave the output layer, after the final norm."""
        self.mix: Mix | None = None
        """What adapters add to the next pass."""
        self.ragged = [RaggedLayer(self) for _ in range(layers)]
        """The same objects as ``layers``, by their own type."""
        super().__init__(layers=list(self.ragged))

    def like(self, rows: int, length: int) -> RaggedCache:
        """An empty one for the same model."""
        return RaggedCache(len(self.ragged), rows, length, self._seen.device, self._seen.dtype, self.limit)

    def grow(self, rows: int) -> None:
        """Room for at least so many rows: twice as many as before, or more, so that growing is rare."""
        if rows > self.rows:
            self.rows = max(rows, 2 * self.rows)
            self._row_base = self._bases()
            for layer in self.ragged:
                layer.grow(self.rows)

    @property
    def kept(self) -> list[torch.Tensor]:
        """Keys and values of every layer, (rows · length, heads, head_dim) each; none before the first pass."""
        return [kept for layer in self.ragged for kept in layer.kept]

    def drop(self) -> None:
        """Let go of keys and values: cache and layers know each other, and Python's collector may be long in coming."""
        for layer in self.ragged:
            layer.drop()

    @property
    def bytes(self) -> int:
        """Memory that keys and values take; none before the first pass."""
        return sum(layer.bytes for layer in self.ragged)

    def _bases(self) -> torch.Tensor:
        return torch.arange(self.rows, device=self._ramp.device).unsqueeze(1) * self.length

    def aim(self, first: int, starts: torch.Tensor, count: int, span: int, packed: torch.Tensor | None = None) -> Feed:
        """Point the next forward pass at B rows from ``first``: row i takes ``count`` tokens at
        positions ``starts[i]`` …; starts is (B, 1) int64 on the device, span > every position fed. With
        ``packed`` (N,) only those of the B · count tokens are fed."""
        positions = starts + self._ramp[:count]
        slots = positions + self._row_base[first : first + len(starts)]
        visible = self._ramp[:span] <= positions.unsqueeze(-1)
        mask = torch.where(visible, self._seen, self._hidden).unsqueeze(1)
        if span > self.limit:
            positions = positions.clamp(max=self.limit - 1)
        slots = slots.view(-1)
        self.feed = Feed(first, positions, slots if packed is None else slots[packed], mask, span, packed)
        return self.feed

    def aim_tree(
        self, starts: torch.Tensor, depths: torch.Tensor, seen: torch.Tensor, span: int, packed: torch.Tensor | None
    ) -> Feed:
        """The same for trees in the first B rows: token i of a row goes to slot ``starts`` (B, 1) + i, stands at
        position ``starts`` + ``depths`` (B, T), and sees the text before ``starts`` and its ancestors, ``seen``
        (B, T, T)."""
        count = depths.shape[1]
        columns = starts + self._ramp[:count]
        visible = (self._ramp[:span] < starts).unsqueeze(1).repeat(1, count, 1)
        visible.scatter_(2, columns.unsqueeze(1).expand(-1, count, -1), seen)
        mask = torch.where(visible, self._seen, self._hidden).unsqueeze(1)
        positions = (starts + depths).clamp_(max=self.limit - 1)
        slots = (columns + self._row_base[: len(starts)]).view(-1)
        self.feed = Feed(0, positions, slots if packed is None else slots[packed], mask, span, packed)
        return self.feed

    def close_up(self, starts: Sequence[int], moves: Sequence[tuple[int, int, int]]) -> None:
        """After trees: of row i's tree at ``starts[i]`` copy token ``source`` to the place of ``target``, for each of
        ``moves`` (row, source, target); all of them at once."""
        if moves:
            sources = [row * self.length + starts[row] + source for row, source, _ in moves]
            targets = [row * self.length + starts[row] + target for row, _, target in moves]
            slots = torch.tensor([sources, targets], device=self._ramp.device)
            for layer in self.ragged:
                layer.copy(slots[0], slots[1])

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy a row's first ``length`` positions over another row (closes the gap that a leaving row makes)."""
        for layer in self.ragged:
            layer.move_row(source, target, length)

    def swap_rows(self, one: int, other: int, length: int) -> None:
        """Let two rows change places, with their first ``length`` positions."""
        for layer in self.ragged:
            layer.swap_rows(one, other, length)
