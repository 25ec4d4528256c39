"""A key-value cache for rows of different length, on unmodified Hugging Face models.

One tensor a layer, of which rows take blocks as their texts grow (:mod:`osd.models.kv_blocks`); a forward pass scatters
its new keys and values to (row, position) and attends over the first ``span`` positions. Which positions a query may
see stands in an explicit mask (key position ≤ query position), so a row is rolled back by shortening a number: what
lies beyond a row's length is garbage that no query sees and the next pass overwrites.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from transformers.cache_utils import Cache

from osd.models import kv_blocks
from osd.models.attention_metadata import AttentionMetadata, AttentionMetadataBuilder
from osd.models.kv_blocks import BLOCK, DenseRows, PagedRows, Rows, blocks_for
from osd.models.kv_cache_layers import FeatureLayer, RaggedLayer

if TYPE_CHECKING:
    from osd.models.lora.bank import AdapterBatch

WHOLE = 1 << 15
"""Positions of all rows up to which a cache without a bound is there whole, on a device where memory does not come with
what is written: to copy blocks together reads and writes the context once more."""


class RaggedCache(Cache):
    """The cache of one model: ``rows`` rows of up to ``length`` positions, with memory for the blocks that they
    hold."""

    def __init__(
        self, layers: int, rows: int, length: int, device: torch.device, dtype: torch.dtype, limit: int
    ) -> None:
        """Build a cache without memory yet. ``limit``: first position that the model does not know (only padding goes
        there)."""
        self.rows, self.length, self.limit = rows, length, limit
        self.total: int | None = None
        """Blocks that rows may hold together; None for no bound."""
        self._device, self.dtype = device, dtype
        self.layout: Rows = self._laid_out(rows)
        """Where rows lie; another object once that is elsewhere."""
        self._aim = AttentionMetadataBuilder(
            length, limit, layers, self._size, device, dtype, lambda first, columns: self.layout.find(first, columns)
        )
        self.feed: AttentionMetadata
        self.wants_embedding = False
        """Whether ``embedding`` is read by anyone: a forward pass that would have to work for it checks this."""
        self.embedding: torch.Tensor | None = None
        """(B, 1 or T, D): the newest pass's final hidden states, after the final norm, as the output layer takes
        them."""
        self.encoded = [0] * rows
        """(rows,) how many of a row's first positions hold what its encoder made of the prompt, the keys and values of
        cross-attention; 0 without an encoder."""
        """What attends over it in osd's own passes."""
        self.keeps_still = True
        """Whether passes over it may be captured: it serves for long."""
        self.mix: AdapterBatch | None = None
        """Adapters that the next pass adds; None for none."""
        self.ragged = [RaggedLayer(self) for _ in range(layers)]
        """The same objects as ``layers``, by their own type."""
        self.features: dict[int, FeatureLayer] = {}
        """The hidden states that are kept beside keys and values, by number: i is the input of layer i, and the number
        of layers is what the output layer reads."""
        super().__init__(layers=list(self.ragged))

    def like(self, rows: int, length: int) -> RaggedCache:
        """Return an empty cache of another size for the same model, for a moment's use."""
        other = RaggedCache(len(self.ragged), rows, length, self._device, self.dtype, self.limit)
        other.keeps_still = False
        return other

    # hidden states

    def keep_features(self, layers: Iterable[int]) -> None:
        """Keep these hidden states from the next pass on, for drafts that read them. What was computed before lacks
        them."""
        for number in sorted(set(layers) - self.features.keys()):
            self.features[number] = FeatureLayer(self)

    def note(self, number: int, states: torch.Tensor, slots: torch.Tensor | None = None) -> None:
        """Keep the pass's hidden state ``number``, (…, H) in the order of its slots; nothing where nobody wants it."""
        if layer := self.features.get(number):
            layer.put(states.reshape(-1, states.shape[-1]), self.feed.slots if slots is None else slots)

    @property
    def _stores(self) -> list[RaggedLayer]:
        """All that is kept of a position."""
        return [*self.ragged, *self.features.values()]

    # blocks

    def bound(self, total: int) -> None:
        """Let rows hold no more than so many blocks together. Before the first pass."""
        self.total = total
        self.layout = self._laid_out(self.rows)

    def extend(self, first: int, ends: Iterable[int]) -> None:
        """Let the rows from ``first`` on hold blocks for so many positions each. Whoever bounds a cache sees to it that
        there are enough."""
        for row, end in enumerate(ends, first):
            if end > self.layout.held[row] * BLOCK and not self.layout.take(row, blocks_for(min(end, self.length))):
                self._make_room(row, blocks_for(min(end, self.length)))

    def want_embedding(self, wanted: bool) -> None:
        """Have passes keep what the output layer reads, or no longer."""
        self.wants_embedding = wanted

    def release_row(self, row: int) -> None:
        """Give a row's blocks back: it has ended, or is elsewhere."""
        self.layout.release(row)
        if not self.layout.paged:
            for layer in self._stores:
                layer.release(row * self.layout.stride, (row + 1) * self.layout.stride)

    def grow(self, rows: int) -> None:
        """Make room for at least ``rows`` rows: twice as many as before, or more, so that growing is rare."""
        if rows > self.rows:
            self.rows = max(rows, 2 * self.rows)
            self.encoded += [0] * (self.rows - len(self.encoded))
            self._lay_out(self._laid_out(self.rows, self.layout.used))

    def _make_room(self, row: int, count: int) -> None:
        """Make the pool large enough for a row to hold ``count`` blocks, twice as large if it may be. Raises
        RuntimeError where its bound forbids that."""
        used = self.layout.used + count - self.layout.held[row]
        if self.total is not None and used > self.total:
            raise RuntimeError(f"the cache has {self.total} blocks, and {used} are wanted")
        self._lay_out(self._laid_out(self.rows, used))
        self.layout.take(row, count)

    def _laid_out(self, rows: int, used: int = 0) -> Rows:
        """Return where so many rows lie that hold ``used`` blocks."""
        whole = rows * self.length <= WHOLE if self.total is None else rows * blocks_for(self.length) <= self.total
        if whole or kv_blocks.comes_when_written(self._device):
            return DenseRows(rows, self.length, self._device)
        return PagedRows(rows, self.length, self.total or max(2 * used, WHOLE // BLOCK), self._device)

    def _lay_out(self, layout: Rows) -> None:
        """Lay the cache out anew, keeping what rows hold."""
        before, self.layout = self.layout, layout
        for row, count in enumerate(before.held):
            layout.take(row, count)
        for layer in self._stores:
            layer.lay_out(before)

    @property
    def stride(self) -> int:
        """Positions that a row has addresses for."""
        return self.layout.stride

    @property
    def spare(self) -> int:
        """A slot that is nobody's: a pass of a fixed shape writes its padding there."""
        return self.layout.spare

    @property
    def kept(self) -> list[torch.Tensor]:
        """Keys and values of every layer, and the hidden states that are kept, (heads, slots, head_dim) each; none
        before the first pass."""
        return [kept for layer in self._stores for kept in layer.kept]

    def drop(self) -> None:
        """Free keys and values: cache and layers refer to each other, and Python's collector may be long in coming."""
        for layer in self._stores:
            layer.drop()
        for row in range(self.rows):
            self.layout.release(row)

    @property
    def slot_bytes(self) -> int:
        """Memory of one position's keys and values, of all layers, in bytes; 0 before the first pass."""
        return sum(layer.slot_bytes for layer in self._stores)

    @property
    def bytes(self) -> int:
        """Memory of keys and values, in bytes: of blocks that are held, where it comes with what is written."""
        lazily = kv_blocks.comes_when_written(self._device)
        return self.slot_bytes * (self.layout.used * BLOCK if lazily else self.layout.slots)

    # passes

    def aim(
        self, first: int, starts: Sequence[int], width: int, counts: Sequence[int], packed: torch.Tensor | None = None
    ) -> AttentionMetadata:
        """Point the next forward pass at rows; arguments as in
        :meth:`osd.models.attention_metadata.AttentionMetadataBuilder.rows`."""
        self.feed = self._aim.rows(first, starts, width, counts, packed)
        return self.feed

    def aim_tree(
        self, starts: Sequence[int], depths: torch.Tensor, seen: torch.Tensor, counts: Sequence[int],
        packed: torch.Tensor | None, offset: int = 0,
    ) -> AttentionMetadata:  # fmt: skip
        """Point the next forward pass at trees; arguments as in
        :meth:`osd.models.attention_metadata.AttentionMetadataBuilder.trees`."""
        self.feed = self._aim.trees(starts, depths, seen, counts, packed, offset)
        return self.feed

    def _size(self) -> int:
        """Return the elements of one position's keys, by which rows are grouped; 0, so that all rows attend together,
        before the first pass and on a device where padding costs nothing noticeable."""
        layer = self.ragged[0]
        return layer.kept[0][:, 0].numel() if layer.kept and self._device.type == "cpu" else 0

    # rows

    def line(self, row: int, begin: int, end: int) -> slice | torch.Tensor:
        """Return a row's slots from position ``begin`` up to ``end``, which it holds."""
        return self.layout.line(row, begin, end)

    def close_up(self, starts: Sequence[int], moves: Sequence[tuple[int, int, int]]) -> None:
        """Compact trees after verification: for each of ``moves`` (row, source, target), copy token ``source`` of the
        row's tree at ``starts[row]`` to the place of ``target``; all of them at once."""
        if moves:
            sources = [self.layout.slot(row, starts[row] + source) for row, source, _ in moves]
            targets = [self.layout.slot(row, starts[row] + target) for row, _, target in moves]
            slots = torch.tensor([sources, targets], device=self._device)
            for layer in self._stores:
                layer.copy(slots[0], slots[1])

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy a row's first ``length`` positions over another row."""
        self.extend(target, [length])
        self.encoded[target] = self.encoded[source]
        for layer in self._stores:
            layer.copy_line(self.line(source, 0, length), self.line(target, 0, length))

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move a row with its first ``length`` positions to the place of another (closes the gap that a leaving row
        makes)."""
        self.encoded[target] = self.encoded[source]
        if not self.layout.paged:
            for layer in self._stores:
                layer.copy_line(self.line(source, 0, length), self.line(target, 0, length))
        self.layout.exchange(source, target)
        self.release_row(source)

    def swap_rows(self, one: int, other: int, length: int) -> None:
        """Exchange two rows, with their first ``length`` positions."""
        self.encoded[one], self.encoded[other] = self.encoded[other], self.encoded[one]
        if not self.layout.paged:
            for layer in self._stores:
                layer.swap_lines(self.line(one, 0, length), self.line(other, 0, length))
        self.layout.exchange(one, other)
