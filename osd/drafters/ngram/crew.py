"""Shares the rows of one batch out among the cores: compiled work that lets other threads run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from osd.kernels.host import usable_cores

MOST = 8
"""Most threads: a batch's trees are a matter of a millisecond."""

CALM, OTHER = 0.2, 32
"""Weight of a new timing; period, in batches, at which the slower way is tried again."""

Part = Callable[[int, slice], None]
"""Computes the rows of a slice, with the worker of this number."""


def cores() -> int:
    """Return the cores that this process may use, as far as they help."""
    return min(MOST, usable_cores())


class AdaptiveThreadPool:
    """Chooses the number of threads with which rows are done soonest: all, or, where other work has the cores, one.

    Which it is was timed on earlier batches, and every so often the other is tried.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._us: list[float | None] = [None, None]
        """Moving average of the microseconds a row, alone and together."""
        self._batches = 0

    def run(self, rows: int, part: Part) -> None:
        """Compute every row, see :func:`share_out`."""
        if rows < 2 or self.threads < 2:
            part(0, slice(0, rows))
            return
        self._batches += 1
        together = self._choose()
        begun = time.perf_counter()
        share_out(rows, self.threads if together else 1, part)
        us, before = (time.perf_counter() - begun) * 1e6 / rows, self._us[together]
        self._us[together] = us if before is None else before + CALM * (us - before)

    def _choose(self) -> bool:
        alone, together = self._us
        if alone is None or together is None:
            return together is None
        return (together < alone) != (self._batches % OTHER == 0)


def share_out(rows: int, workers: int, part: Part) -> None:
    """Compute every row once: ``part`` is called for slices that differ by one row at most, one of them by this thread,
    and all are done when this returns. What a part raises is raised here."""
    workers = min(workers, rows)
    if workers <= 1:
        part(0, slice(0, rows))
        return
    ends = [rows * i // workers for i in range(workers + 1)]
    others = [_pool(os.getpid()).submit(part, i, slice(ends[i], ends[i + 1])) for i in range(1, workers)]
    try:
        part(0, slice(0, ends[1]))
    finally:
        errors = [each.exception() for each in others]  # nothing may write once this has returned
    for error in errors:
        if error is not None:
            raise error


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the thread pool of a process; a fork has none of its parent's threads."""
    return ThreadPoolExecutor(MOST - 1, thread_name_prefix="osd-drafts")
