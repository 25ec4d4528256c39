"""The target's logits, reduced to what is kept of them: the k likeliest tokens and the mass outside.

The recorder's thread does it. On a CPU by a compiled pass (:mod:`osd.topk`), 4 µs a position, without the interpreter,
which decoding needs, and of logits where they lie: nothing is copied. Until that pass is compiled, and where logits lie
on a GPU, by PyTorch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

log = logging.getLogger(__name__)

Compiled = Callable[..., None]
"""See :func:`osd.topk.reduce_rows`."""


class Kept(NamedTuple):
    """What is kept of the target's distribution at m positions."""

    ids: npt.NDArray[np.int32]
    """(m, k) the likeliest tokens, likeliest first."""
    logprobs: npt.NDArray[np.float32]
    """(m, k) natural logarithms."""
    outside: npt.NDArray[np.float32]
    """(m,) probability of all other tokens."""

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return self.ids.nbytes + self.logprobs.nbytes + self.outside.nbytes


def reduce_plain(logits: Tensor, k: int) -> Kept:
    """Logits (m, V) of any type and device → what is kept of them, k at most V. A row with NaN comes out as NaN."""
    # on the CPU log_softmax takes a third of logsumexp's time
    logprobs, ids = logits.log_softmax(-1, dtype=torch.float32).topk(min(k, logits.shape[1]), dim=-1)
    outside = (1 - logprobs.exp().sum(-1)).clamp_(min=0)
    return Kept(ids.to(torch.int32).cpu().numpy(), logprobs.cpu().numpy(), outside.cpu().numpy())


class Rows(NamedTuple):
    """Rows of logits that wait to be reduced."""

    logits: Tensor
    """Keeps the memory: float32 (n, V), dense."""
    addresses: list[int]
    """(m,) where in it they begin."""


class Reducer:
    """Reduces logits in the fastest way there is at the moment."""

    def __init__(self, k: int, compiled: bool = True) -> None:
        """``compiled``: make the compiled pass ready, in the background."""
        self.k = k
        self._compiled: Compiled | None = None
        self._loading = threading.Thread(target=self._load, name="osd-compile", daemon=True)
        if compiled:
            self._loading.start()

    def wait(self) -> bool:
        """Until the compiled pass is ready; False where there is none."""
        if self._loading.ident is not None:
            self._loading.join()
        return self._compiled is not None

    def rows(self, logits: Tensor, index: Sequence[int]) -> Rows | None:
        """The rows ``index`` of logits (…, V), for the compiled pass; None where only PyTorch can reduce them.

        Nothing is copied, so they must stay as they are until they are reduced.
        """
        if self._compiled is None or logits.device.type != "cpu":
            return None
        if logits.dtype != torch.float32:
            logits, index = logits.flatten(0, -2)[list(index)].float(), range(len(index))
        logits = logits.contiguous()
        begin, size = logits.data_ptr(), 4 * logits.shape[-1]
        return Rows(logits, [begin + size * i for i in index])

    def reduce(self, rows: Sequence[Rows]) -> Kept:
        """All of these, one after another: one call for several passes of one model."""
        addresses = [address for some in rows for address in some.addresses]
        width = rows[0].logits.shape[-1]
        assert self._compiled is not None
        return _run(self._compiled, np.array(addresses, np.int64), width, min(self.k, width))

    def __call__(self, logits: Tensor) -> Kept:
        """All rows of logits (m, V)."""
        rows = self.rows(logits, range(len(logits)))
        return reduce_plain(logits, self.k) if rows is None else self.reduce([rows])

    def _load(self) -> None:
        """Import and compile, or read what an earlier process compiled, and try it once."""
        try:
            from osd.topk import reduce_rows

            once = torch.zeros(2)
            _run(reduce_rows, np.array([once.data_ptr()]), 2, 1)
        except Exception as error:  # whatever is wrong with the compiler on this machine, the plain way works
            log.warning(
                "positions are reduced by PyTorch, which takes four times as long (%s)",
                (str(error).strip() or type(error).__name__).splitlines()[0],
                extra={"action": "compile_failed"},
            )
        else:
            self._compiled = reduce_rows


def _run(compiled: Compiled, addresses: npt.NDArray[np.int64], width: int, k: int) -> Kept:
    count = len(addresses)
    kept = Kept(np.empty((count, k), np.int32), np.empty((count, k), np.float32), np.empty(count, np.float32))
    compiled(addresses, width, *kept)
    return kept
