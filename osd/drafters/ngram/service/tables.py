"""The proposer of a server that drafts from n-grams: a table a route, and one for each tenant that does not share."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np

from osd.drafters.model_free import TAIL, teach
from osd.drafters.ngram.maker import MakerSettings, NgramDrafter
from osd.drafters.ngram.service.chores import BackgroundWorker
from osd.drafters.ngram.service.consent import Consent
from osd.drafters.ngram.service.shelf import TableStore
from osd.drafters.ngram.table import Table, TableSettings
from osd.drafters.ngram.tree import NOTHING, NgramProposal
from osd.drafters.table_override import HitRates, TableGroup
from osd.sequence import SequenceState
from storage.errors import OsdError
from storage.settings import Settings

log = logging.getLogger(__name__)
Key = tuple[str, str]
"""A route, and the tenant where its requests must not be mixed with others'."""
LOOK = 1.0
"""Period in seconds at which the thread looks for work."""
NEVER = -1
"""Birth of a table that counts as older than everything that was forgotten."""
REFILL = 1.0
"""Seconds of a period, about, for tables that learn from recorded requests: the rest must not wait for them."""


class Tables:
    """Proposes from tables. Until a row's table is there, nothing is drafted for it."""

    name = "trigram"

    def __init__(self, settings: Settings, shelf: TableStore, consent: Consent) -> None:
        self._shelf, self._consent = shelf, consent
        self._most, self._every = settings.ngram.tables, settings.ngram.keep_seconds
        depth = min(64, max(1, settings.gamma.max))
        self._settings = MakerSettings.of(settings, nodes=settings.drafters.tree_nodes, depth=depth)
        self._makers: dict[Key, NgramDrafter] = {}
        """Makers of the tables in use, the least recently used first. Changed by the engine's thread."""
        self._rows: dict[Key, int] = {}
        self._arrived: dict[Key, NgramDrafter] = {}
        self._wanted: dict[Key, None] = {}
        self._gone: list[tuple[Key, Table]] = []
        self._seats: dict[str, tuple[Key, NgramDrafter, int, bool]] = {}
        self._due, self._warm, self._closing = time.monotonic() + self._every, False, False
        self._chores = BackgroundWorker("osd-tables", self._work, LOOK)

    # the engine's thread

    def join(self, row: SequenceState) -> None:
        """Give the row a place in its table; see :class:`osd.drafters.tree.Proposer`."""
        self._seat(row)

    def propose(
        self, rows: Sequence[SequenceState], depths: Sequence[int], nodes: Sequence[int]
    ) -> Sequence[NgramProposal]:
        """Propose trees from the rows' tables; see :class:`osd.drafters.tree.Proposer`."""
        found, groups = [NOTHING] * len(rows), dict[Key, list[int]]()
        for i, row in enumerate(rows):
            if seat := self._seat(row):
                groups.setdefault(seat[0], []).append(i)
        for key, members in groups.items():
            seats = [self._seats[rows[i].request.id] for i in members]
            most = [min(nodes[i], self._settings.nodes) for i in members]
            trees = self._makers[key].propose(
                [seat[2] for seat in seats], [rows[i].tokens[-TAIL:] for i in members], most,
                [depths[i] for i in members],
            )  # fmt: skip
            for i, tree in zip(members, trees, strict=True):
                found[i] = tree
        return found

    def place_of(self, row: SequenceState) -> tuple[NgramDrafter, int] | None:
        """Return the row's table and its place there; see :class:`osd.drafters.blended.PlacesRows`."""
        seat = self._seat(row)
        return None if seat is None else seat[1:3]

    def learn(self, row: SequenceState, start: int) -> None:
        """Learn the row's new tokens; see :class:`osd.drafters.tree.Proposer`. The shared table does not count what a
        tenant does not allow to be recorded, nor what was or is being forgotten."""
        if seat := self._seats.get(row.request.id):
            allowed = seat[3] and row.request.id not in self._shelf.trail.request_ids
            teach(seat[1], seat[2], row, start, shared=allowed)
            if allowed and row.request.id in self._shelf.trail.request_ids:
                seat[1].table.born = NEVER  # forgotten in between: this may have been the new table already

    def recall(self, row: SequenceState, start: int) -> None:
        """Learn them for the row alone; see :class:`osd.drafters.tree.Proposer`."""
        if seat := self._seats.get(row.request.id):
            teach(seat[1], seat[2], row, start, shared=False)

    def leave(self, row: SequenceState) -> None:
        """Free the row's place; see :class:`osd.drafters.tree.Proposer`."""
        if seat := self._seats.pop(row.request.id, None):
            seat[1].close(seat[2])
            self._rows[seat[0]] -= 1

    def _seat(self, row: SequenceState) -> tuple[Key, NgramDrafter, int, bool] | None:
        if seat := self._seats.get(row.request.id):
            return seat
        if (allowed := self._consent.of(row.request.tenant)) is None:
            self._chores.wake()
            return None
        key = (row.route, "" if allowed.share else allowed.name)
        if (maker := self._maker(key)) is None:
            return None
        place = maker.open(np.array(row.tokens, np.int64))
        self._rows[key] = self._rows.get(key, 0) + 1
        seat = self._seats[row.request.id] = (key, maker, place, allowed.learn)
        return seat

    def _maker(self, key: Key) -> NgramDrafter | None:
        """Return the table of a key and mark it as used last; None while it is not there."""
        maker = self._makers.pop(key, None)
        if maker is None and key in self._arrived and self._make_room():
            maker = self._arrived.pop(key)
        if maker is not None:
            self._makers[key] = maker
        elif key not in self._arrived and key not in self._wanted:
            self._wanted[key] = None
            self._chores.wake()
        return maker

    def _make_room(self) -> bool:
        """Evict the least recently used tables until there is room for one more; rows keep theirs."""
        idle = [key for key in self._makers if not self._rows.get(key)]
        while len(self._makers) >= self._most and idle:
            self._gone.append((idle[0], self._makers.pop(idle[0]).table))
            self._rows.pop(idle.pop(0), None)
        return len(self._makers) < self._most

    # the thread's

    def _work(self) -> None:
        self._shelf.trail.look()
        self._renew()
        self._consent.refresh()
        if not self._warm:
            warm_up()
            self._warm = True
        while self._gone:
            self._keep(*self._gone.pop(), least=1.0)
        for key in list(self._wanted):
            if len(self._arrived) < self._most:
                table = self._shelf.load(key[0]) if not key[1] else self._shelf.fresh()
                self._arrived[key] = NgramDrafter(table, self._settings)
            self._wanted.pop(key, None)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            for key, maker in list(self._makers.items()):
                self._keep(key, maker.table)
        self._shelf.trail.drop_tables()
        until = time.monotonic() + REFILL
        self._shelf.refill.run(lambda: self._closing or time.monotonic() > until)

    def _renew(self) -> None:
        """Replace tables that were born before something was forgotten.

        Rows keep their places, their own tables, and the trust in the shared one; the engine's thread sees either
        table, both are whole.
        """
        for key, maker in [*list(self._makers.items()), *list(self._arrived.items())]:
            old = maker.table
            if old.born < self._shelf.trail.line:
                maker.table = self._shelf.fresh() if key[1] else self._shelf.anew(key[0], old)

    def _keep(self, key: Key, table: Table, **how: float) -> None:
        """Save what a route's table has learned. A tenant's own is never written."""
        if not key[1]:
            self._shelf.keep(key[0], table, **how)

    def close(self) -> None:
        """End the thread, and save every table that has learned."""
        self._closing = True
        self._chores.close()
        for key, table in [*self._gone, *((key, maker.table) for key, maker in self._makers.items())]:
            try:
                self._keep(key, table, least=1.0)
            except OsdError as error:
                log.warning("a table was not kept: %s", error, extra={"action": "table_not_kept"})


def warm_up() -> None:
    """Compile what decoding will call, or load what an earlier process compiled."""
    maker = NgramDrafter(Table(TableSettings(memory=1 << 16)), MakerSettings(searches=1, own_slots=64))
    place = maker.open(np.arange(4))
    maker.learn(place, np.arange(6), 4)
    maker.propose([place], [[1, 2]], [4], [2])
    trust = HitRates()
    trust.hear(maker, place, np.arange(6), 4, sampled=False)
    group = TableGroup(maker, trust, [place], [[1, 2]], [False], 1)
    group.look(0)
    group.choose(0, [3], [0.5])
    group.hear_drafted(0, [3])
