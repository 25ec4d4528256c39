"""Drafts from a table: one tree for every row of a batch, in a compiled call for each core that there are rows for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from osd.drafters.ngram.counts import Index
from osd.drafters.ngram.crew import AdaptiveThreadPool, cores
from osd.drafters.ngram.errors import BadTable
from osd.drafters.ngram.overlay import Overlays
from osd.drafters.ngram.search import SearchBuffers, SearchRules, draft_rows, new_bench
from osd.drafters.ngram.table import Table, require_tokens
from osd.drafters.ngram.tree import NgramProposal
from storage.settings import Settings

MOST_SEARCHES = 4096
SLOWEST, CALM = 20.0, 0.1
"""Microseconds that a search is assumed to take before one was timed; weight of a new timing."""


@dataclass(frozen=True, slots=True)
class MakerSettings:
    """How drafts are searched for. docs/ngram.md says how the numbers were found."""

    searches: int = 150
    """Searches a row, the paper's number."""
    budget_us: float | None = None
    """Microseconds for a whole batch instead: as many searches as fit by recent timings."""
    nodes: int = 32
    """Most tokens of a tree: the sequences that are merged bring one each."""
    depth: int = 16
    """Most tokens of a sequence."""
    breadth: int = 16
    """Successors that are considered after each token."""
    c1: float = 1.25
    """C1 of Eq. 3."""
    c2: float = 19652.0
    """C2 of Eq. 3."""
    weight: float = 128.0
    """Weight of an n-gram of the request itself, relative to one of the shared table."""
    kappa: float = 10.0
    """Back-off: weight of the shorter contexts beside the longer one, in counts. 0 is Eq. 1: the longest decides."""
    shortest: int = 0
    """Tokens of the shortest context that is looked up. ``order`` − 1 is the paper's matrix alone."""
    method: Literal["mcts", "greedy"] = "mcts"
    """Search method; ``greedy`` follows the likeliest token only."""
    own_slots: int = 4096
    """Contexts kept for each request."""
    threads: int | None = None
    """Threads among which the rows of a batch are shared out where that is faster; None: one for each core that the
    process may use, at most 8."""

    @classmethod
    def of(cls, settings: Settings, **more: Any) -> MakerSettings:
        """Return what ``[ngram.search]`` says; ``more``: tokens of a tree and of a sequence at most."""
        return cls(**settings.ngram.search.model_dump(), threads=settings.serve.threads, **more)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("searches", 1, MOST_SEARCHES), ("nodes", 1, 1024), ("depth", 1, 64), ("breadth", 1, 64),
            ("shortest", 0, 3), ("own_slots", 64, 1 << 24),
        ):  # fmt: skip
            if not least <= getattr(self, name) <= most:
                raise BadTable(name=name, reason=f"{getattr(self, name)} is not between {least} and {most}.")
        for name in ("c1", "weight", "kappa"):
            if not 0 <= getattr(self, name) < np.inf:
                raise BadTable(name=name, reason=f"{getattr(self, name)} is not a number from 0 on.")
        if not 0 < self.c2 < np.inf:
            raise BadTable(name="c2", reason=f"{self.c2} is not above 0.")
        if self.threads is not None and self.threads < 1:
            raise BadTable(name="threads", reason=f"{self.threads} is not 1 or more.")
        if self.budget_us is not None and not 0 < self.budget_us < np.inf:
            raise BadTable(name="budget_us", reason=f"{self.budget_us} is not above 0.")


class NgramDrafter:
    """Makes drafts for the rows of one engine. One thread uses it; the table may be shared."""

    def __init__(self, table: Table, settings: MakerSettings = MakerSettings()) -> None:
        self.table, self.settings = table, settings
        self.order = table.settings.order
        self.overlays = Overlays(self.order, settings.own_slots)
        searches = MOST_SEARCHES if settings.budget_us else settings.searches
        self._crew = AdaptiveThreadPool(settings.threads or cores())
        self._room_for_search = max(searches, settings.depth), settings.breadth
        self._benches: list[tuple[SearchBuffers, Index]] = []
        self._us = SLOWEST
        self._room(8)

    def _room(self, rows: int) -> None:
        nodes = self.settings.nodes
        self._tokens, self._parents = np.zeros((rows, nodes), np.int64), np.zeros((rows, nodes), np.int64)
        self._chances = np.zeros((rows, nodes))
        self._tails = np.zeros((rows, self.order - 1), np.int64)
        self._lengths, self._sizes, self._places, self._depths = (np.zeros(rows, np.int64) for _ in range(4))

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
        self,
        places: Sequence[int],
        tails: Sequence[Sequence[int] | Index],
        most: Sequence[int] | None = None,
        depths: Sequence[int] | None = None,
    ) -> list[NgramProposal]:
        """Propose a tree for each row. ``tails`` are the rows' texts, of which the end is enough; ``most`` their trees'
        sizes, none above ``nodes``; ``depths`` how deep they may be, none deeper than ``depth``."""
        rows = len(places)
        if rows > len(self._sizes):
            self._room(2 * rows)
        self._fill(places, tails, most)
        self._depths[:rows] = self.settings.depth if depths is None else depths
        searches = self.searches_for(rows)
        begun = time.perf_counter()
        rules = self._rules(searches)
        self._seat(min(self._crew.threads, rows))
        with self.table.lock:
            self._crew.run(rows, lambda worker, part: self._search(worker, part, rules))
        self._time(time.perf_counter() - begun, rows, searches)
        sizes = self._sizes[:rows].tolist()
        return [self._proposal(r, size) for r, size in enumerate(sizes)]

    def _seat(self, workers: int) -> None:
        """Allocate arrays for each worker to search in."""
        while len(self._benches) < workers:
            self._benches.append((new_bench(*self._room_for_search), np.zeros(self.order - 1, np.int64)))

    def _search(self, worker: int, part: slice, rules: SearchRules) -> None:
        bench, context = self._benches[worker]
        draft_rows(
            bench, self.table.cells, self.overlays.arena, self._places[part], self._tails[part], self._lengths[part],
            context, rules, self._tokens[part], self._parents[part], self._chances[part], self._sizes[part],
            self._depths[part],
        )  # fmt: skip

    def _proposal(self, row: int, size: int) -> NgramProposal:
        tokens, parents = self._tokens[row, :size].copy(), self._parents[row, :size].copy()
        return NgramProposal(tokens, parents, self._chances[row, :size].copy())

    def _fill(self, places: Sequence[int], tails: Sequence[Sequence[int] | Index], most: Sequence[int] | None) -> None:
        room = self.order - 1
        for r, tail in enumerate(tails):
            last = tail[-room:]
            self._lengths[r] = len(last)
            self._tails[r, room - len(last) :] = last
        self._places[: len(places)] = places
        self._sizes[: len(places)] = self.settings.nodes if most is None else most

    def _rules(self, searches: int) -> SearchRules:
        chosen = self.settings
        greedy = chosen.method == "greedy"
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

    def _time(self, seconds: float, rows: int, searches: int) -> None:
        if rows:
            self._us += CALM * (seconds * 1e6 / (rows * searches) - self._us)
