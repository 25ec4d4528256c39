"""The proposer of a server that drafts from kept requests: an index over the newest ones, made anew now and then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from osd.ngram.served import SOME
from osd.ngram.suffix import DEFAULTS, SuffixIndex
from osd.ngram.tree import NOTHING, Proposal
from osd.proposing.chores import Chores
from osd.row import Row
from storage.settings import ServeSettings
from storage.store import Store


class Suffixes:
    """Proposes nothing until the first index is there. Requests of tenants that do not share are in none."""

    name = "suffix"

    def __init__(self, serve: ServeSettings, store: Store, vocabulary: int) -> None:
        self._store, self._most, self._vocabulary = store, serve.suffix_requests, vocabulary
        self.index: SuffixIndex | None = None
        self._seen: list[str] = []
        self._chores = Chores("osd-suffixes", self._build, serve.suffix_seconds)

    def join(self, row: Row) -> None:
        """See :class:`osd.drafters.tree.Proposer`."""

    def propose(self, rows: Sequence[Row], depths: Sequence[int], nodes: Sequence[int]) -> Sequence[Proposal]:
        """See :class:`osd.drafters.tree.Proposer`."""
        if (index := self.index) is None:
            return [NOTHING] * len(rows)
        return index.propose([np.array(row.tokens[-DEFAULTS.longest :], np.int64) for row in rows], nodes)

    def learn(self, row: Row, start: int) -> None:
        """See :class:`osd.drafters.tree.Proposer`. What is kept comes with the next index."""

    def recall(self, row: Row, start: int) -> None:
        """See :class:`osd.drafters.tree.Proposer`."""

    def leave(self, row: Row) -> None:
        """See :class:`osd.drafters.tree.Proposer`."""

    def close(self) -> None:
        """End the thread."""
        self._chores.close()

    def _build(self) -> None:
        ids = self._store.samples.recent(limit=self._most)
        if self.index is not None and ids == self._seen:
            return
        index = SuffixIndex.build(self._texts(ids))
        index.propose([np.zeros(4, np.int64)], [4])  # compiled before the engine asks
        self.index, self._seen = index, ids

    def _texts(self, ids: Sequence[str]) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int32]]]:
        """Texts of tenants that share, without those of another tokenizer."""
        shares: dict[str, bool] = {}
        for first in range(0, len(ids), SOME):
            for request in self._store.samples.read(ids[first : first + SOME]):
                if request.tenant not in shares:
                    shares[request.tenant] = self._store.samples.tenants.get(request.tenant).share
                if shares[request.tenant] and request.tokens.max(initial=0) < self._vocabulary:
                    yield request.tokens
