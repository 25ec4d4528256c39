"""Drafts from a table: one tree for every row of a batch, in a compiled call for each core that there are rows for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from pydantic import Field

from osd.draft_tree import TokenProposal
from osd.drafters.ngram.cells import BUCKET, Cells, clear, new_cells
from osd.drafters.ngram.counts import Index, SearchRules, learn
from osd.drafters.ngram.search import DraftRows, SearchBuffers, draft_rows, new_buffers, new_rows
from osd.drafters.ngram.table import Table, require_tokens
from osd.kernels.host import usable_cores
from storage.settings import Settings
from storage.settings.drafting import NgramSearchSettings

MOST_THREADS = 8
"""Most threads: a batch's trees are a matter of a millisecond."""

TIMING_WEIGHT, OTHER = 0.2, 32
"""Weight of a new timing; period, in batches, at which the slower way is tried again."""

Part = Callable[[int, slice], None]
"""Computes the rows of a slice, with the worker of this number."""


def cores() -> int:
    """Return the cores that this process may use, as far as they help."""
    return min(MOST_THREADS, usable_cores())


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
        self._us[together] = us if before is None else before + TIMING_WEIGHT * (us - before)

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
    return ThreadPoolExecutor(MOST_THREADS - 1, thread_name_prefix="osd-drafts")


WORDS_A_SLOT = 4


class Overlays:
    """Small tables, one a request, of ``slots`` contexts each. Long texts lose their weakest contexts."""

    def __init__(self, order: int, slots: int, rows: int = 8) -> None:
        self.order, self.slots = order, slots
        self.arena = new_cells(slots // BUCKET, slots * WORDS_A_SLOT, (rows,))
        self._free = list(range(rows - 1, -1, -1))

    def open(self, tokens: Index) -> int:
        """Open a place for a request that begins with these tokens, and return it."""
        if not self._free:
            self._extend()
        place = self._free.pop()
        clear(self.table(place))
        self.learn(place, tokens, 0)
        return place

    def learn(self, place: int, tokens: Index, start: int) -> None:
        """Count the n-grams of the request that end at ``tokens[start:]``."""
        learn(self.table(place), tokens, start, self.order, 0.0)

    def close(self, place: int) -> None:
        """Free the place of a request that has ended."""
        self._free.append(place)

    def table(self, place: int) -> Cells:
        """Return one request's table."""
        return Cells(*(array[place] for array in self.arena))

    def _extend(self) -> None:
        rows = len(self.arena.keys)
        more = new_cells(self.slots // BUCKET, self.slots * WORDS_A_SLOT, (2 * rows,))
        for name in Cells._fields:
            getattr(more, name)[:rows] = getattr(self.arena, name)
        self.arena = more
        self._free = list(range(2 * rows - 1, rows - 1, -1))


MOST_SEARCHES = 4096
SLOWEST, CALM = 20.0, 0.1
"""Microseconds that a search is assumed to take before one was timed; weight of a new timing."""


class SearchSettings(NgramSearchSettings):
    """How drafts are searched for, and how large they are. docs/ngram.md says how the numbers were found."""

    nodes: int = Field(default=32, ge=1, le=1024)
    """Most tokens of a tree: the sequences that are merged bring one each."""
    depth: int = Field(default=16, ge=1, le=64)
    """Most tokens of a sequence."""
    own_slots: int = Field(default=4096, ge=64)
    """Contexts kept for each request."""
    threads: int | None = Field(default=None, ge=1)
    """Threads among which the rows of a batch are shared out where that is faster; None: one for each core that the
    process may use, at most 8."""

    @classmethod
    def of(cls, settings: Settings, **more: Any) -> SearchSettings:
        """Return what ``[ngram.search]`` says; ``more``: tokens of a tree and of a sequence at most."""
        return cls(**settings.ngram.search.model_dump(), threads=settings.serve.threads, **more)


DEFAULTS = SearchSettings()


class NgramDrafter:
    """Drafts for the rows of one engine. One thread uses it; the table may be shared."""

    def __init__(self, table: Table, settings: SearchSettings = DEFAULTS) -> None:
        self.table, self.settings = table, settings
        self.order = table.settings.order
        self.overlays = Overlays(self.order, settings.own_slots)
        self._threads = AdaptiveThreadPool(settings.threads or cores())
        self._buffers: list[SearchBuffers] = []
        """What each thread searches in."""
        self._us = SLOWEST
        self._rows = new_rows(8, settings.nodes, self.order)

    def open(self, prompt: Index) -> int:
        """Open a place for a row that begins with these tokens, and return it. Raises BadTable for tokens beyond the
        table's range."""
        require_tokens(prompt)
        return self.overlays.open(np.ascontiguousarray(prompt, np.int64))

    def learn(self, place: int, tokens: Index, start: int, *, shared: bool = True) -> None:
        """Count ``tokens[start:]`` of a row's text, which the target chose, in its own table and the ``shared`` one.

        Tokens before ``start`` are context; the last ``order`` − 1 of them are enough.
        """
        tokens = np.ascontiguousarray(tokens[max(0, start - self.order + 1) :], np.int64)
        start = min(start, self.order - 1)
        self.overlays.learn(place, tokens, start)
        if shared:
            self.table.learn(tokens, start)

    def close(self, place: int) -> None:
        """Close the place of a row that has ended."""
        self.overlays.close(place)

    def propose(
        self, places: Sequence[int], tails: Sequence[Sequence[int] | Index], most: Sequence[int] | None = None,
        depths: Sequence[int] | None = None,
    ) -> list[TokenProposal]:  # fmt: skip
        """Propose a tree for each row. ``tails`` are the rows' texts, of which the end is enough; ``most`` their trees'
        sizes, none above ``nodes``; ``depths`` how deep they may be, none deeper than ``depth``."""
        count, settings = len(places), self.settings
        if count > len(self._rows.sizes):
            self._rows = new_rows(2 * count, settings.nodes, self.order)
        rows = self._rows.part(slice(count))
        rows.places[:], rows.sizes[:] = places, settings.nodes if most is None else most
        rows.depths[:] = settings.depth if depths is None else depths
        for r, tail in enumerate(tails):
            last = tail[1 - self.order :]
            rows.lengths[r] = len(last)
            rows.tails[r, self.order - 1 - len(last) :] = last
        self._search(rows, self.searches_for(count))
        return [self._proposal(rows, r, size) for r, size in enumerate(rows.sizes.tolist())]

    def _search(self, rows: DraftRows, searches: int) -> None:
        """Fill the rows' trees, shared out among threads."""
        begun, rules, count = time.perf_counter(), self._rules(searches), len(rows.places)
        most = MOST_SEARCHES if self.settings.budget_us else self.settings.searches
        while len(self._buffers) < min(self._threads.threads, count):
            self._buffers.append(new_buffers(max(most, self.settings.depth), self.settings.breadth, self.order))

        def search(worker: int, part: slice) -> None:
            draft_rows(self._buffers[worker], self.table.cells, self.overlays.arena, rows.part(part), rules)

        with self.table.lock:
            self._threads.run(count, search)
        if count:
            self._us += CALM * ((time.perf_counter() - begun) * 1e6 / (count * searches) - self._us)

    def _proposal(self, rows: DraftRows, row: int, size: int) -> TokenProposal:
        found = rows.tokens[row, :size].copy(), rows.parents[row, :size].copy()
        return TokenProposal(*found, rows.chances[row, :size].copy())

    def _rules(self, searches: int) -> SearchRules:
        chosen, greedy = self.settings, self.settings.method == "greedy"
        return SearchRules(
            self.order, chosen.weight, chosen.kappa, chosen.shortest, 0 if greedy else searches,
            1 if greedy else chosen.breadth, chosen.depth, chosen.c1, chosen.c2,
        )  # fmt: skip

    def searches_for(self, rows: int) -> int:
        """Return the searches a row for a batch of ``rows`` rows."""
        budget = self.settings.budget_us
        if budget is None:
            return self.settings.searches
        return int(min(MOST_SEARCHES, max(1.0, budget / (rows * self._us))))
