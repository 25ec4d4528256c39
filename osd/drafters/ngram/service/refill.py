"""Refills tables that began anew because something was forgotten: they learn from recorded requests.

A table learns while it serves, a piece of a text at a time, so that the decoding thread waits for its lock no longer
than it does anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from osd.drafters.model_free import TAIL
from osd.drafters.ngram.table import Table
from storage.errors import SegmentDamaged
from storage.records import RequestSamples
from storage.replay.samples import SampleStore

log = logging.getLogger(__name__)
SOME = 256
"""Requests that are read in one go."""
MOST = 20_000
"""Newest requests of a route that a table learns from."""
LOST = 0.01
"""Share of a table's contexts that have been evicted when it counts as full."""
PIECE = 64
"""Tokens that are counted at once, while the decoding thread may have to wait."""


@dataclass(slots=True)
class RefillState:
    """What a table has still to learn from."""

    route: str
    full: float
    """Number of evicted contexts at which it counts as full."""
    ids: list[str] | None = None
    """Requests, newest first; None until the store was asked."""


class Refill:
    """Tables that have not learned from the recorded requests yet. One thread uses it."""

    def __init__(self, samples: SampleStore, vocabulary: int, target: str | None = None) -> None:
        self._samples, self._vocabulary, self._target = samples, vocabulary, target
        self._todo: dict[Table, RefillState] = {}

    def begin(self, table: Table, route: str) -> None:
        """Have a table learn from a route's requests."""
        self._todo[table] = RefillState(route, table.evicted + LOST * len(table.cells.keys))

    def __contains__(self, table: Table) -> bool:
        """Return whether a table has still to learn."""
        return table in self._todo

    def forget(self, table: Table) -> None:
        """Drop a table that is not needed any more."""
        self._todo.pop(table, None)

    def run(self, stop: Callable[[], bool]) -> None:
        """Learn what is left, or until ``stop``; the next call goes on from there, after an error too. Raises
        StoreError."""
        for table, left in list(self._todo.items()):
            if left.ids is None:
                left.ids = self._samples.recent(routes=[left.route], limit=MOST, target=self._target)
            while left.ids and table.evicted <= left.full:
                if stop():
                    return
                self._learn(table, left.ids[:SOME])
                left.ids = left.ids[SOME:]
            del self._todo[table]

    def _learn(self, table: Table, ids: list[str]) -> None:
        try:
            for request in shared_requests(self._samples, ids, self._vocabulary):
                learn(table, request)
        except SegmentDamaged as error:
            log.warning("%s", error, extra={"action": "table_refill"})


def shared_requests(samples: SampleStore, ids: Sequence[str], vocabulary: int) -> list[RequestSamples]:
    """Return those of the kept requests, in their order, that a server may draft from for everybody: of tenants that
    share; without forgotten ones and those of another tokenizer. Raises SegmentDamaged, StoreError."""
    found = samples.without_forgotten(samples.read(ids))
    shares = {tenant: samples.tenants.get(tenant).share for tenant in {request.tenant for request in found}}
    return [request for request in found if shares[request.tenant] and request.tokens.max(initial=0) < vocabulary]


def learn(table: Table, request: RequestSamples) -> None:
    """Learn a request's output, as a table would have while it served the request."""
    tokens = request.tokens.astype(np.int64)
    for first in range(request.prompt_len, len(tokens), PIECE):
        begin = max(0, first - TAIL)
        table.learn(tokens[begin : first + PIECE], first - begin)
