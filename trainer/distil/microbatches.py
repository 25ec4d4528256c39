"""Micro-batches of a time limit, sized by the measured pace.

The gradient of a batch is the sum over its slices, so their number changes rounding and nothing else. A request
is never divided: the shortest slice is one request, forward and backward, and the optimizer takes one step for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from storage.records import RequestSamples
from trainer.distil.branching import context_length

NEWEST = 0.3
"""Weight of the newest slice in the measured pace."""
FIRST_TOKENS = 64
"""Tokens of the first slice, before anything was measured."""


class MicroBatches:
    """The micro-batches of one run; ``between`` is called after each, to wait while others need the device."""

    def __init__(self, seconds: float, between: Callable[[], None]) -> None:
        self.seconds, self._between = seconds, between
        self._per_token: float | None = None

    def cut(self, samples: Sequence[RequestSamples], chunk: Sequence[int]) -> Iterator[list[int]]:
        """Yield the chunk's indices into ``samples`` slice by slice, timing the caller's work between them."""
        tokens = FIRST_TOKENS if self._per_token is None else self.seconds / self._per_token
        left = list(chunk)
        while left:
            count = 1
            widest = context_length(samples[left[0]])
            while count < len(left):
                wider = max(widest, context_length(samples[left[count]]))
                if wider * (count + 1) > tokens:
                    break
                widest, count = wider, count + 1
            part, left = left[:count], left[count:]
            began = time.perf_counter()
            yield part
            self._measure(widest * count, time.perf_counter() - began)
            tokens = self.seconds / (self._per_token or 1.0)
            self._between()

    def _measure(self, tokens: int, seconds: float) -> None:
        pace = seconds / max(1, tokens)
        self._per_token = pace if self._per_token is None else self._per_token + NEWEST * (pace - self._per_token)
