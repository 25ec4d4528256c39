"""The proposer of a server that drafts from recorded requests: an index over the newest ones, rebuilt now and then, and
within seconds when something was forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from osd.drafters.ngram.served import SOME
from osd.drafters.ngram.service.chores import Chores
from osd.drafters.ngram.service.shared import shared_requests
from osd.drafters.ngram.service.trail import LOOK, Trail
from osd.drafters.ngram.suffix import DEFAULTS, SuffixIndex
from osd.drafters.ngram.tree import NOTHING, NgramProposal
from osd.sequence import SequenceState
from storage.settings import ServeSettings
from storage.store import Store


class Suffixes:
    """Proposes from the index; nothing until the first one is there. Requests of tenants that do not share are in
    none."""

    name = "suffix"

    def __init__(self, serve: ServeSettings, store: Store, vocabulary: int) -> None:
        self._store, self._most, self._vocabulary = store, serve.suffix_requests, vocabulary
        self.index: SuffixIndex | None = None
        self._seen: list[str] = []
        self._trail, self._line = Trail(store.forgetter), 0
        self._every, self._due = serve.suffix_seconds, 0.0
        self._chores = Chores("osd-suffixes", self._work, min(LOOK, self._every))

    def join(self, row: SequenceState) -> None:
        """Do nothing; see :class:`osd.drafters.tree.Proposer`."""

    def propose(
        self, rows: Sequence[SequenceState], depths: Sequence[int], nodes: Sequence[int]
    ) -> Sequence[NgramProposal]:
        """Propose trees from the index; see :class:`osd.drafters.tree.Proposer`."""
        if (index := self.index) is None:
            return [NOTHING] * len(rows)
        return index.propose([np.array(row.tokens[-DEFAULTS.longest :], np.int64) for row in rows], nodes)

    def learn(self, row: SequenceState, start: int) -> None:
        """Do nothing: what is recorded comes with the next index. See :class:`osd.drafters.tree.Proposer`."""

    def recall(self, row: SequenceState, start: int) -> None:
        """Do nothing; see :class:`osd.drafters.tree.Proposer`."""

    def leave(self, row: SequenceState) -> None:
        """Do nothing; see :class:`osd.drafters.tree.Proposer`."""

    def close(self) -> None:
        """End the thread."""
        self._chores.close()

    def _work(self) -> None:
        self._trail.look()
        line = self._trail.line
        if line > self._line or time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            self._build(anew=line > self._line)
            self._line = line

    def _build(self, *, anew: bool) -> None:
        ids = self._store.samples.recent(limit=self._most)
        if self.index is not None and ids == self._seen and not anew:
            return
        index = SuffixIndex.build(self._texts(ids))
        index.propose([np.zeros(4, np.int64)], [4])  # compiled before the engine asks
        self.index, self._seen = index, ids

    def _texts(self, ids: Sequence[str]) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int32]]]:
        for first in range(0, len(ids), SOME):
            for request in shared_requests(self._store.samples, ids[first : first + SOME], self._vocabulary):
                yield request.tokens
