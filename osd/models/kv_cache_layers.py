"""One layer of the key-value cache: its keys and values, or the hidden states that a feature draft reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from transformers.cache_utils import CacheLayerMixin

from osd.models import kv_blocks
from osd.models.attention_metadata import AttentionMetadata
from osd.models.kv_blocks import BLOCK, LazyTensor, Rows


class Addressed(Protocol):
    """What a layer asks of the cache that it belongs to."""

    feed: AttentionMetadata
    """Where the pass that runs writes and reads."""
    layout: Rows
    """Where the rows lie."""
    length: int
    """Positions of a row."""

    def line(self, row: int, begin: int, end: int) -> slice | torch.Tensor:
        """Return the slots of some of a row's positions."""


class RaggedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers' own base is untyped
    """Keys and values of one layer: (heads, slots, head_dim) each, allocated on first use.

    A head's keys lie next to each other, for that is how attention reads them: over 800 positions of 8 rows it takes a
    third to a half of the time that it takes where heads alternate.
    """

    is_sliding = False

    def __init__(self, cache: Addressed) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cache = cache
        self.kept: list[torch.Tensor] = []
        self._lazy: list[LazyTensor] = []
        """The same, where memory comes with what is written."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the cache for new keys and values of these shapes: (B, heads, T, head_dim)."""
        self._allocate([(new.shape[1], new.shape[3], new.dtype, new.device) for new in (key_states, value_states)])
        self.is_initialized = True

    def _allocate(self, kinds: Iterable[tuple[int, int, torch.dtype, torch.device]]) -> None:
        """Take tensors of zeros for so many heads of such a width, of a type and on a device each."""
        slots = self.cache.layout.slots
        self._lazy, self.kept = [], []
        for heads, width, dtype, device in kinds:
            if kv_blocks.comes_when_written(device):
                self._lazy.append(LazyTensor((heads, slots, width), dtype))
                self.kept.append(self._lazy[-1].tensor)
            else:
                self.kept.append(torch.zeros(heads, slots, width, dtype=dtype, device=device))
        if len(self.kept) == 2:
            self.keys, self.values = self.kept

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
        first, layout = self.cache.feed.first, self.cache.layout
        begin, end = first + rows.start, first + rows.stop
        keys, values = (layout.window(kept, begin, end, span) for kept in self.kept)
        return keys, values

    def copy(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy keys and values between slots (n,), reading all of them before any is overwritten."""
        for kept in self.kept:
            here, there = sources.to(kept.device), targets.to(kept.device)
            kept.index_copy_(1, there, kept[:, here])

    def lay_out(self, before: Rows) -> None:
        """Lay keys and values out as the cache has them now, keeping the blocks that rows held before: one tensor after
        another, so that little is there twice."""
        if self.is_initialized:
            olds = self.kept
            self._allocate([(len(old), old.shape[2], old.dtype, old.device) for old in olds])
            for old, new in zip(olds, self.kept, strict=True):
                for row, blocks in enumerate(before.held):
                    end = min(blocks * BLOCK, before.stride)
                    new[:, self.cache.layout.line(row, 0, end)] = old[:, before.line(row, 0, end)]

    def drop(self) -> None:
        """Free keys and values."""
        self.kept, self._lazy, self.keys, self.values, self.is_initialized = [], [], None, None, False

    def release(self, begin: int, end: int) -> None:
        """Give slots' memory back, where it came with what was written."""
        for lazy in self._lazy:
            heads, slots, width = lazy.tensor.shape
            for head in range(heads):
                lazy.release((head * slots + begin) * width, (head * slots + end) * width)

    @property
    def slot_bytes(self) -> int:
        """Memory of one position's keys and values, in bytes."""
        return sum(len(kept) * kept.shape[2] * kept.element_size() for kept in self.kept)

    def copy_line(self, source: slice | torch.Tensor, target: slice | torch.Tensor) -> None:
        """Copy keys and values from some slots to others."""
        for kept in self.kept:
            kept[:, target] = kept[:, source]

    def swap_lines(self, one: slice | torch.Tensor, other: slice | torch.Tensor) -> None:
        """Exchange keys and values of slots."""
        for kept in self.kept:
            aside = kept[:, one].clone()
            kept[:, one] = kept[:, other]
            kept[:, other] = aside

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.feed.span, 0

    def get_seq_length(self) -> int:
        return self.cache.feed.span - self.cache.feed.queries.shape[1]  # before the pass, as everywhere in transformers

    def get_max_length(self) -> int:
        return self.cache.length

    get_max_cache_shape = get_max_length  # its name in the first versions of transformers 5


class FeatureLayer(RaggedLayer):  # type: ignore[no-untyped-call]  # transformers' own base is untyped
    """One hidden state of the target at every position: (1, slots, H + 1), kept as keys are. The last number is 1 where
    the state was computed, and 0 where it never was."""

    def put(self, states: torch.Tensor, slots: torch.Tensor) -> None:
        """Write states (N, H) at slots (N,)."""
        if not self.is_initialized:
            self._allocate([(1, states.shape[1] + 1, states.dtype, states.device)])
            self.is_initialized = True
        marked = torch.nn.functional.pad(states, (0, 1), value=1.0)
        self.kept[0].index_copy_(1, slots.to(states.device), marked.unsqueeze(0))

    def read(self, row: int, begin: int, end: int) -> torch.Tensor:
        """Return the states of a row's positions ``begin`` to ``end`` − 1, (end − begin, H)."""
        return self.kept[0][0, self.cache.line(row, begin, end), :-1]

    def has(self, row: int, begin: int, end: int) -> bool:
        """Return whether they were all computed."""
        return self.is_initialized and bool(self.kept[0][0, self.cache.line(row, begin, end), -1].all())
