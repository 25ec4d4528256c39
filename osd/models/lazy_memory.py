"""Host memory that the operating system gives page by page, as it is written, and takes back when it is told to.

So a tensor may be as large as everything that could ever be kept, and costs what is kept.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from storage.errors import BadSetting

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
