"""Reduces the target's logits to what is kept of them: the k likeliest tokens and the mass outside.

On a CPU the recorder's thread does it, by a compiled pass (:mod:`osd.kernels.topk`), 4 µs a position, without the
interpreter, which decoding needs, and reading logits where they lie: nothing is copied. Until that pass is compiled, by
PyTorch; and by PyTorch on a GPU, where the decode loop only launches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osd.kernels.code_cache import BackgroundCompile, apart

Index = npt.NDArray[np.int64]
Compiled = Callable[..., None]
"""The compiled reduction, :func:`osd.kernels.topk.reduce_rows`."""
OTHERWISE = "positions are reduced by PyTorch, which takes four times as long"


class TopKLogprobs(NamedTuple):
    """What is kept of the target's distribution at m positions."""

    ids: npt.NDArray[np.int32]
    """(m, k) the likeliest tokens, likeliest first."""
    logprobs: npt.NDArray[np.float32]
    """(m, k) their natural log-probabilities."""
    outside: npt.NDArray[np.float32]
    """(m,) total probability of all other tokens."""


def reduce_plain(logits: Tensor, k: int) -> TopKLogprobs:
    """Reduce logits (m, V) of any dtype and device by PyTorch; k is at most V. A row with NaN comes out as NaN."""
    return on_host(*launched(logits, k))


def launched(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Start the reduction on the logits' own device: ids, log-probabilities and mass outside, which may not be ready
    yet."""
    # on the CPU log_softmax takes a third of logsumexp's time
    logprobs, ids = logits.log_softmax(-1, dtype=torch.float32).topk(min(k, logits.shape[1]), dim=-1)
    return ids.to(torch.int32), logprobs, (1 - logprobs.exp().sum(-1)).clamp_(min=0)


def on_host(ids: Tensor, logprobs: Tensor, outside: Tensor) -> TopKLogprobs:
    """Wait for a launched reduction and bring it to the host."""
    return TopKLogprobs(ids.cpu().numpy(), logprobs.cpu().numpy(), outside.cpu().numpy())


def rows_at(table: Tensor, index: Index) -> Tensor:
    """Index a table on its own device: (n, …) → (m, …)."""
    return table[torch.from_numpy(index).to(table.device)]


class Reducer:
    """Reduces logits in the fastest way there is at the moment."""

    def __init__(self, k: int, compiled: bool = True) -> None:
        """Keep ``k`` tokens. ``compiled``: make the compiled pass ready, in the background."""
        self.k = k
        self._compiler = BackgroundCompile(compile_reducing, "osd-compile", OTHERWISE) if compiled else None
        if self._compiler:
            self._compiler.start()

    @property
    def _compiled(self) -> Compiled | None:
        return self._compiler.ready if self._compiler else None

    def wait(self) -> bool:
        """Wait until the compiled pass is ready; return False where there is none."""
        return self._compiler is not None and self._compiler.wait() is not None

    def __call__(self, passes: Sequence[Tensor], numbers: Index, places: Index) -> TopKLogprobs:
        """Reduce m positions, at least one, of one model's passes over logits (n, V) on a CPU.

        ``numbers`` (m,) says which pass, ascending; ``places`` (m,) which of its n rows. Nothing is copied where the
        compiled pass can read logits as they are, so they must not change meanwhile.
        """
        compiled = self._compiled
        if compiled is None:
            return reduce_plain(_copied(passes, numbers, places), self.k)
        if not all(logits.dtype == torch.float32 and logits.is_contiguous() for logits in passes):
            passes = [_copied(passes, numbers, places).float()]
            numbers, places = np.zeros_like(numbers), np.arange(len(numbers))
        width = passes[0].shape[-1]
        begins = np.array([logits.data_ptr() for logits in passes])
        return _run(compiled, begins[numbers] + 4 * width * places, width, min(self.k, width))


def compile_reducing() -> Compiled:
    """Compile the reduction, or load what an earlier process compiled, and try it once."""
    from osd.kernels.topk import reduce_rows

    apart(reduce_rows, "osd.recording.topk:compile_reducing")
    once = torch.zeros(2, dtype=torch.float32)
    _run(reduce_rows, np.array([once.data_ptr()]), 2, 1)
    return reduce_rows


def _copied(passes: Sequence[Tensor], numbers: Index, places: Index) -> Tensor:
    """Gather the rows at these places: (m, V)."""
    some = np.split(places, np.searchsorted(numbers, np.arange(1, len(passes))))
    return torch.cat([rows_at(logits, index) for logits, index in zip(passes, some, strict=True)])


def _run(compiled: Compiled, addresses: npt.NDArray[np.int64], width: int, k: int) -> TopKLogprobs:
    count = len(addresses)
    kept = TopKLogprobs(np.empty((count, k), np.int32), np.empty((count, k), np.float32), np.empty(count, np.float32))
    compiled(addresses, width, *kept)
    return kept
