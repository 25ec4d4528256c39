"""A key-value cache for rows of different length, on unmodified Hugging Face models.

One tensor a layer, which grows as rows' texts do; a forward pass scatters its new keys and values to (row, position)
and attends over the first ``span`` positions. Which positions a query may see stands in an explicit
mask (key position ≤ query position), so a row is rolled back by shortening a number: what lies
beyond a row's length is garbage that no query sees and the next pass overwrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from osd.models.attention_metadata import AttentionMetadata, AttentionMetadataBuilder

if TYPE_CHECKING:
    from osd.models.lora.bank import AdapterBatch


FIRST = 512
"""Positions that rows begin with, where they may become longer."""
BLOCK = 256
"""Positions by which rows grow where memory is bounded."""


class CacheBudget(NamedTuple):
    """Memory that a cache may take."""

    bytes: int
    position_bytes: int
    """Bytes of one position's keys and values."""

    def holds(self, positions: int) -> bool:
        """Return whether so many positions, of all rows together, are within it."""
        return positions * self.position_bytes <= self.bytes


class RaggedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers' own base is untyped
    """Keys and values of one layer: (heads, rows · stride + 1, head_dim) each, allocated on first use. The last slot is
    nobody's: a pass of a fixed shape writes its padding there.

    A head's keys lie next to each other, for that is how attention reads them: over 800 positions of 8 rows it takes a
    third to a half of the time that it takes where heads alternate.
    """

    is_sliding = False

    def __init__(self, cache: RaggedCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cache = cache
        self.kept: list[torch.Tensor] = []

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the cache for new keys and values of these shapes: (B, heads, T, head_dim)."""
        slots = self.cache.spare + 1
        self.kept = [new.new_zeros(new.shape[1], slots, new.shape[3]) for new in (key_states, value_states)]
        self.keys, self.values = self.kept
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (B, heads, T, head_dim) at the pass's slots; return the rows' first ``span`` positions
        as (B, heads, span, head_dim) views."""
        rows, heads, count, _ = key_states.shape
        flat = [new.transpose(1, 2).reshape(rows * count, heads, -1) for new in (key_states, value_states)]
        self.write(flat[0], flat[1])
        return self.window(slice(0, rows), self.cache.feed.span)

    def write(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values (B · T or N, heads, head_dim), in the order of the pass's slots."""
        if not self.is_initialized:
            self.lazy_initialization(keys.unsqueeze(2), values.unsqueeze(2))
        for kept, new in zip(self.kept, (keys, values), strict=True):
            kept.index_copy_(1, self.cache.feed.slots.to(kept.device), new.transpose(0, 1))  # a layer may be elsewhere

    def window(self, rows: slice, span: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of some of the pass's rows, up to a position, as (rows, heads, span, head_dim)
        views."""
        first = self.cache.feed.first
        begin, end = first + rows.start, first + rows.stop
        keys, values = (self._lines(kept)[:, begin:end, :span].transpose(0, 1) for kept in self.kept)
        return keys, values

    def _lines(self, kept: torch.Tensor) -> torch.Tensor:
        """View a tensor of the cache as (heads, rows, stride, head_dim)."""
        return kept[:, : self.cache.spare].view(len(kept), -1, self.cache.stride, kept.shape[2])

    def copy(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy keys and values between slots (n,), reading all of them before any is overwritten."""
        for kept in self.kept:
            here, there = sources.to(kept.device), targets.to(kept.device)
            kept.index_copy_(1, there, kept[:, here])

    def resize(self, rows: int, stride: int) -> None:
        """Lay the cache out anew for so many rows and positions, keeping what fits: one tensor after another, so that
        little is there twice."""
        if self.is_initialized:
            both = slice(min(rows, self.cache.rows)), slice(min(stride, self.cache.stride))
            for i, old in enumerate(self.kept):
                self.kept[i] = new = old.new_zeros(len(old), rows * stride + 1, old.shape[2])
                lines = new[:, :-1].view(len(old), rows, stride, -1)
                lines[:, both[0], both[1]] = self._lines(old)[:, both[0], both[1]]
            self.keys, self.values = self.kept

    def drop(self) -> None:
        """Free keys and values."""
        self.kept, self.keys, self.values, self.is_initialized = [], None, None, False

    @property
    def bytes(self) -> int:
        """Memory of keys and values, in bytes."""
        return sum(kept.numel() * kept.element_size() for kept in self.kept)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of one row over another."""
        begin, end = source * self.cache.stride, target * self.cache.stride
        for kept in self.kept:
            kept[:, end : end + length] = kept[:, begin : begin + length]

    def swap_rows(self, one: int, other: int, length: int) -> None:
        """Exchange the first ``length`` positions of two rows."""
        for kept in self.kept:
            lines = self._lines(kept)
            aside = lines[:, one, :length].clone()
            lines[:, one, :length] = lines[:, other, :length]
            lines[:, other, :length] = aside

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.feed.span, 0

    def get_seq_length(self) -> int:
        return self.cache.feed.span - self.cache.feed.queries.shape[1]  # before the pass, as everywhere in transformers

    def get_max_length(self) -> int:
        return self.cache.length

    get_max_cache_shape = get_max_length  # its name in the first versions of transformers 5


class RaggedCache(Cache):
    """The cache of one model: ``rows`` rows of up to ``length`` positions, with memory for the first ``stride`` of
    them."""

    def __init__(
        self, layers: int, rows: int, length: int, device: torch.device, dtype: torch.dtype, limit: int
    ) -> None:
        """Build a cache without memory yet. ``limit``: first position that the model does not know (only padding goes
        there)."""
        self.rows, self.length, self.limit = rows, length, limit
        self.stride = min(length, FIRST)
        """Positions of a row that there is memory for."""
        self.budget: CacheBudget | None = None
        """The memory that it may take; None for no bound."""
        self._device, self._dtype = device, dtype
        self._aim = AttentionMetadataBuilder(length, limit, layers, self._size, device, dtype)
        self._aim.stride = self.stride
        self.feed: AttentionMetadata
        self.wants_embedding = False
        """Whether ``embedding`` is read by anyone: a forward pass that would have to work for it checks this."""
        self.embedding: torch.Tensor | None = None
        """(B, 1 or T, D): the newest pass's final hidden states, after the final norm, as the output layer takes
        them."""
        self.keeps_still = True
        """Whether passes over it may be captured: it serves for long."""
        self.mix: AdapterBatch | None = None
        """Adapters that the next pass adds; None for none."""
        self.ragged = [RaggedLayer(self) for _ in range(layers)]
        """The same objects as ``layers``, by their own type."""
        super().__init__(layers=list(self.ragged))

    def like(self, rows: int, length: int) -> RaggedCache:
        """Return an empty cache of another size for the same model, for a moment's use."""
        other = RaggedCache(len(self.ragged), rows, length, self._device, self._dtype, self.limit)
        other.keeps_still = False
        return other

    def grow(self, rows: int) -> None:
        """Make room for at least ``rows`` rows: twice as many as before, or more, so that growing is rare."""
        if rows > self.rows:
            self.resize(max(rows, 2 * self.rows), self.stride)

    def make_room(self, positions: int) -> None:
        """Make room for rows of so many positions."""
        if self.stride < positions <= self.length:
            self.resize(self.rows, self._rounded(positions))

    def resize(self, rows: int, stride: int) -> None:
        """Lay the cache out anew; what lies beyond the rows and positions that stay is gone."""
        for layer in self.ragged:
            layer.resize(rows, stride)
        self.rows, self.stride = rows, stride
        self._aim.stride = stride

    def _rounded(self, positions: int) -> int:
        """Return the positions that are allocated for so many: twice as many, so that growing is rare, or a block more
        where memory is short."""
        if self.budget is not None:
            return min(-(-positions // BLOCK) * BLOCK, self.length)
        stride = self.stride
        while stride < positions:
            stride *= 2
        return min(stride, self.length)

    # a bounded cache

    def bound(self, budget: CacheBudget) -> None:
        """Begin with one row of few positions, and take no more memory than this. Before the first pass."""
        self.budget, self.rows = budget, 1
        self.stride = self._aim.stride = min(self.length, BLOCK)

    def fits(self, rows: int, positions: int) -> bool:
        """Return whether there may be so many rows that each may come to have so many positions."""
        return self.budget is None or self.budget.holds(rows * self._rounded(positions))

    def admit(self, rows: int, positions: int) -> None:
        """Make room for so many rows, none of which will have more than ``positions``: where rows were longer, what
        they had is given back. They fit, and so does all that they take by :meth:`make_room`."""
        most = self._rounded(positions)
        if self.budget is not None and (self.rows < rows or not self.budget.holds(self.rows * most)):
            self.resize(rows, min(self.stride, most))

    @property
    def spare(self) -> int:
        """The slot behind all rows."""
        return self.rows * self.stride

    @property
    def kept(self) -> list[torch.Tensor]:
        """Keys and values of every layer, (heads, rows · stride + 1, head_dim) each; none before the first pass."""
        return [kept for layer in self.ragged for kept in layer.kept]

    def drop(self) -> None:
        """Free keys and values: cache and layers refer to each other, and Python's collector may be long in coming."""
        for layer in self.ragged:
            layer.drop()

    @property
    def bytes(self) -> int:
        """Memory of keys and values, in bytes; 0 before the first pass."""
        return sum(layer.bytes for layer in self.ragged)

    def aim(
        self, first: int, starts: Sequence[int], width: int, counts: Sequence[int], packed: torch.Tensor | None = None
    ) -> AttentionMetadata:
        """Point the next forward pass at rows; arguments as in
        :meth:`osd.models.attention_metadata.AttentionMetadataBuilder.rows`."""
        self.feed = self._aim.rows(first, starts, width, counts, packed)
        return self.feed

    def aim_tree(
        self, starts: Sequence[int], depths: torch.Tensor, seen: torch.Tensor, counts: Sequence[int],
        packed: torch.Tensor | None,
    ) -> AttentionMetadata:  # fmt: skip
        """Point the next forward pass at trees; arguments as in
        :meth:`osd.models.attention_metadata.AttentionMetadataBuilder.trees`."""
        self.feed = self._aim.trees(starts, depths, seen, counts, packed)
        return self.feed

    def _size(self) -> int:
        """Return the elements of one position's keys, by which rows are grouped; 0, so that all rows attend together,
        before the first pass and on a device where padding costs nothing noticeable."""
        layer = self.ragged[0]
        return layer.kept[0][:, 0].numel() if layer.kept and self._device.type == "cpu" else 0

    def close_up(self, starts: Sequence[int], moves: Sequence[tuple[int, int, int]]) -> None:
        """Compact trees after verification: for each of ``moves`` (row, source, target), copy token ``source`` of the
        row's tree at ``starts[row]`` to the place of ``target``; all of them at once."""
        if moves:
            sources = [row * self.stride + starts[row] + source for row, source, _ in moves]
            targets = [row * self.stride + starts[row] + target for row, _, target in moves]
            slots = torch.tensor([sources, targets], device=self._device)
            for layer in self.ragged:
                layer.copy(slots[0], slots[1])

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy a row's first ``length`` positions over another row (closes the gap that a leaving row makes)."""
        for layer in self.ragged:
            layer.move_row(source, target, length)

    def swap_rows(self, one: int, other: int, length: int) -> None:
        """Exchange two rows, with their first ``length`` positions."""
        for layer in self.ragged:
            layer.swap_rows(one, other, length)
