"""Blocks of a KV cache: which of them each row holds, and where its positions lie.

A row takes blocks of BLOCK positions as its text grows (PagedAttention's blocks). Where they lie is one of two:

- **dense**: every row has addresses for its whole length, one position after another, and memory comes with what is
  written (:func:`lazy_zeros`), or all of it at once where that is little. Attention reads the cache itself.
- **paged**: a pool of blocks, of which rows hold any, by a table. Attention reads a copy of the rows' blocks,
  which is made in the pass; the table is on the device, so that captured passes go on as rows grow.

Both count alike.

Lazy memory is host memory that the operating system gives page by page, as it is written, and takes back when it is
told to: a tensor may be as large as everything that could ever be kept, and costs what is kept.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from storage.errors import BadSetting

BLOCK = 32
"""Positions of a block."""


def blocks_for(positions: int) -> int:
    """Return the blocks that so many positions of a row take."""
    return -(-positions // BLOCK)


class DenseRows:
    """Rows of ``stride`` slots, one after another. Slot ``spare``, the last, is nobody's."""

    paged = False

    def __init__(self, rows: int, length: int, device: torch.device) -> None:
        self.stride = length
        """Positions that a row may have."""
        self.held = [0] * rows
        """Blocks of each row."""
        self.spare = rows * length
        self.slots = self.spare + 1
        """Slots in all."""
        self._begins = torch.arange(rows, device=device).unsqueeze(1) * length

    @property
    def used(self) -> int:
        """Blocks that rows hold."""
        return sum(self.held)

    def take(self, row: int, count: int) -> bool:
        """Let a row hold ``count`` blocks, if it has fewer. Returns whether there were enough."""
        self.held[row] = max(self.held[row], count)
        return True

    def release(self, row: int) -> None:
        """Take all of a row's blocks from it."""
        self.held[row] = 0

    def exchange(self, one: int, other: int) -> None:
        """Let two rows hold each other's blocks; what is in them does not go with them."""
        self.held[one], self.held[other] = self.held[other], self.held[one]

    def slot(self, row: int, position: int) -> int:
        """Return the slot of a row's position."""
        return row * self.stride + position

    def find(self, first: int, columns: Tensor) -> Tensor:
        """Return the slots of positions (B, T), of the rows from ``first`` on; or (T,), of that row."""
        if columns.dim() == 1:
            return columns + first * self.stride if first else columns
        return columns + self._begins[first : first + len(columns)]

    def line(self, row: int, begin: int, end: int) -> slice | Tensor:
        """Return a row's slots from position ``begin`` up to ``end``."""
        return slice(row * self.stride + begin, row * self.stride + end)

    def window(self, kept: Tensor, begin: int, end: int, span: int) -> Tensor:
        """Return the first ``span`` positions of some rows, (rows, heads, span, head_dim), of a tensor of the cache
        (heads, slots, head_dim)."""
        lines = kept[:, : self.spare].view(len(kept), -1, self.stride, kept.shape[2])
        return lines[:, begin:end, :span].transpose(0, 1)


class PagedRows:
    """Rows that hold blocks of a pool of ``capacity``; see :class:`DenseRows` for what it offers. The block behind the
    pool is nobody's: there what a table lacks is read, and padding written."""

    paged = True

    def __init__(self, rows: int, length: int, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self.stride = blocks_for(length) * BLOCK
        self.spare = capacity * BLOCK
        self.slots = self.spare + BLOCK
        self.table = torch.full((rows, blocks_for(length)), capacity, device=device)
        """(rows, blocks of a row) int64: the number of each block."""
        self.held = [0] * rows
        """Blocks of each row."""
        self._blocks: list[list[int]] = [[] for _ in range(rows)]
        self._free = list(range(capacity))[::-1]

    @property
    def used(self) -> int:
        """Blocks that rows hold."""
        return self.capacity - len(self._free)

    def take(self, row: int, count: int) -> bool:
        """Give a row free blocks until it has ``count``. Returns False, and gives none, where there are too few."""
        blocks = self._blocks[row]
        missing = count - len(blocks)
        if missing > len(self._free):
            return False
        if missing > 0:
            blocks += [self._free.pop() for _ in range(missing)]
            self._enter([row])
        return True

    def release(self, row: int) -> None:
        """Take all of a row's blocks from it."""
        self._free += self._blocks[row]
        self._blocks[row] = []
        self._enter([row])

    def exchange(self, one: int, other: int) -> None:
        """Let two rows hold each other's blocks, with what is in them."""
        self._blocks[one], self._blocks[other] = self._blocks[other], self._blocks[one]
        self._enter([one, other])

    def _enter(self, rows: Iterable[int]) -> None:
        """Write rows' blocks into the table, in place: captured passes read it."""
        for row in rows:
            self.held[row] = count = len(self._blocks[row])
            line = self._blocks[row] + [self.capacity] * (self.table.shape[1] - count)
            self.table[row].copy_(torch.tensor(line), non_blocking=True)

    def slot(self, row: int, position: int) -> int:
        """Return the slot of a row's position."""
        return self._blocks[row][position // BLOCK] * BLOCK + position % BLOCK

    def find(self, first: int, columns: Tensor) -> Tensor:
        """Return the slots of positions (B, T), of the rows from ``first`` on; or (T,), of that row."""
        if columns.dim() == 1:
            return self.find(first, columns.unsqueeze(0))[0]
        numbers = (columns // BLOCK).clamp(max=self.table.shape[1] - 1)
        return self.table[first : first + len(columns)].gather(1, numbers) * BLOCK + columns % BLOCK

    def line(self, row: int, begin: int, end: int) -> slice | Tensor:
        """Return a row's slots from position ``begin`` up to ``end``."""
        return self.find(row, torch.arange(begin, end, device=self.table.device))

    def window(self, kept: Tensor, begin: int, end: int, span: int) -> Tensor:
        """Return the first ``span`` positions of some rows, (rows, heads, span, head_dim), copied together from a
        tensor of the cache (heads, slots, head_dim)."""
        blocks = self.table[begin:end, : blocks_for(span)]
        pool = kept.view(len(kept), -1, BLOCK, kept.shape[2])
        lines = pool.index_select(1, blocks.flatten().to(kept.device))
        return lines.view(len(kept), end - begin, -1, kept.shape[2])[:, :, :span].transpose(0, 1)


Rows = DenseRows | PagedRows


NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Linux: nothing is set aside for what may be written. Python knows its name from 3.13 on."""


class LazyTensor:
    """A tensor of zeros over memory of its own, no page of which is there before it is written."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Reserve addresses. Raises BadSetting where the system refuses them."""
        size = math.prod(shape) * dtype.itemsize
        try:
            self._memory = _private(size)
        except OSError as error:
            reason = f"the system reserves no {size >> 20} MB for keys and values ({error.strerror}); lower it"
            raise BadSetting(source="settings", key="serve.max_batch", reason=reason) from None
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page is 2 MB of one head, for the first of its tokens
        self.tensor: Tensor = torch.frombuffer(self._memory, dtype=dtype).view(*shape)

    def release(self, begin: int, end: int) -> None:
        """Give back the whole pages among the elements from ``begin`` to ``end``: they are zeros again."""
        if sys.platform != "linux":  # elsewhere the advice promises nothing
            return
        size = self.tensor.element_size()
        first = -(-begin * size // mmap.PAGESIZE) * mmap.PAGESIZE
        last = end * size // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)


def _private(size: int) -> mmap.mmap:
    """Reserve memory of this process alone. Raises OSError."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)


def comes_when_written(device: torch.device) -> bool:
    """Return whether memory on a device comes page by page with what is written."""
    return device.type == "cpu"
