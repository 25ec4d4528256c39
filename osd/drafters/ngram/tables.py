"""The proposer of a server that drafts from n-grams: a table a route for each tenant, or one for all that share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from osd.draft_tree import NOTHING, TokenProposal
from osd.drafters.model_free import TAIL, teach
from osd.drafters.ngram.drafter import NgramDrafter, SearchSettings
from osd.drafters.ngram.predictions import new_rates
from osd.drafters.ngram.table import Table, TableSettings
from osd.drafters.ngram.table_store import TableStore
from osd.drafters.table_override import TableGroup, count_predicted
from osd.sequence import SequenceState
from storage.access.tenants import Tenant, TenantLedger
from storage.errors import OsdError
from storage.settings import Settings

log = logging.getLogger(__name__)

AGAIN = 10.0
"""Seconds after which known tenants are looked up again."""
Key = tuple[str, str]
"""A route, and the tenant where its requests must not be mixed with others'."""
LOOK = 1.0
"""Period in seconds at which the thread looks for work."""
NEVER = -1
"""Birth of a table that counts as older than everything that was forgotten."""
UNASKED = 5.0
"""Seconds after which a table that has arrived, and that nobody asks for, makes room."""
REFILL = 1.0
"""Seconds of a period, about, for tables that learn from recorded requests: the rest must not wait for them."""


class BackgroundWorker:
    """Runs some work when it is woken, and periodically. What fails is logged and tried again."""

    def __init__(self, name: str, work: Callable[[], None], every: float) -> None:
        """Start the thread. ``every``: period in seconds."""
        self._work, self._every, self._closing = work, every, False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Run the work soon."""
        self._wake.set()

    def close(self) -> None:
        """End after the current work."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            try:
                self._work()
            except Exception as error:  # decoding goes on without drafts; nothing here may end it
                said = (str(error).strip() or type(error).__name__).splitlines()[0]
                log.warning("%s: %s", self._thread.name, said, extra={"action": "proposing_failed"})
            self._wake.wait(self._every)
            self._wake.clear()


class TenantPermissions:
    """Cache of tenants' settings. One thread refreshes it from the store, another reads."""

    def __init__(self, ledger: TenantLedger) -> None:
        self._ledger = ledger
        self._known: dict[str, Tenant] = {}
        self._asked: set[str] = set()
        self._due = 0.0

    def of(self, tenant: str) -> Tenant | None:
        """Return a tenant's settings; None where they are not known yet."""
        found = self._known.get(tenant)
        if found is None:
            self._asked.add(tenant)
        return found

    def refresh(self) -> None:
        """Load tenants that were asked for, and now and then all. Raises StoreError."""
        asked = list(self._asked)
        if time.monotonic() >= self._due:
            asked, self._due = [*self._known, *asked], time.monotonic() + AGAIN
        for tenant in asked:
            self._known[tenant] = self._ledger.get(tenant)
            self._asked.discard(tenant)


class Tables:
    """Proposes from tables. Until a row's table is there, nothing is drafted for it.

    What is drafted and accepted was in a text that the table counted: whom a table serves can read in it. So tenants
    have tables of their own, unless ``privacy.share_tables`` says otherwise.
    """

    name = "trigram"

    def __init__(self, settings: Settings, store: TableStore, consent: TenantPermissions) -> None:
        self._store, self._consent, self._shares = store, consent, settings.privacy.share_tables
        self._most, self._every = settings.ngram.tables, settings.ngram.keep_seconds
        depth = min(64, max(1, settings.gamma.max))
        self._settings = SearchSettings.of(settings, nodes=settings.drafters.tree_nodes, depth=depth)
        self._drafters: dict[Key, NgramDrafter] = {}
        """Drafters of the tables in use, the least recently used first. Changed by the engine's thread."""
        self._rows: dict[Key, int] = {}
        self._arrived: dict[Key, NgramDrafter] = {}
        self._wanted: dict[Key, None] = {}
        self._asked: dict[Key, float] = {}
        """When those that have arrived were last asked for."""
        self._gone: list[tuple[Key, Table]] = []
        self._seats: dict[str, tuple[Key, NgramDrafter, int, bool]] = {}
        self._due, self._warm, self._closing = time.monotonic() + self._every, False, False
        self._worker = BackgroundWorker("osd-tables", self._work, LOOK)

    # the engine's thread

    def join(self, row: SequenceState) -> None:
        """Give the row a place in its table; see :class:`osd.drafters.tree.Proposer`."""
        self._seat(row)

    def propose(
        self, rows: Sequence[SequenceState], depths: Sequence[int], nodes: Sequence[int]
    ) -> Sequence[TokenProposal]:
        """Propose trees from the rows' tables; see :class:`osd.drafters.tree.Proposer`."""
        found, groups = [NOTHING] * len(rows), dict[Key, list[int]]()
        for i, row in enumerate(rows):
            if seat := self._seat(row):
                groups.setdefault(seat[0], []).append(i)
        for key, members in groups.items():
            seats = [self._seats[rows[i].request.id] for i in members]
            most = [min(nodes[i], self._settings.nodes) for i in members]
            trees = self._drafters[key].propose(
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
            allowed = seat[3] and row.request.id not in self._store.forgotten.request_ids
            teach(seat[1], seat[2], row, start, shared=allowed)
            if allowed and row.request.id in self._store.forgotten.request_ids:
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
            self._worker.wake()
            return None
        key = (row.route, "" if self._shares and allowed.share else allowed.name)
        if (drafter := self._drafter(key)) is None:
            return None
        place = drafter.open(np.array(row.tokens, np.int64))
        self._rows[key] = self._rows.get(key, 0) + 1
        seat = self._seats[row.request.id] = (key, drafter, place, allowed.learn)
        return seat

    def _drafter(self, key: Key) -> NgramDrafter | None:
        """Return the table of a key and mark it as used last; None while it is not there."""
        drafter = self._drafters.pop(key, None)
        if drafter is None and key in self._arrived and self._make_room():
            drafter = self._arrived.pop(key, None)  # None: the thread has just let it go
            self._asked.pop(key, None)
        if drafter is not None:
            self._drafters[key] = drafter
        elif key in self._arrived:
            self._asked[key] = time.monotonic()
        elif key not in self._wanted:
            self._wanted[key] = None
            self._worker.wake()
        return drafter

    def _make_room(self) -> bool:
        """Evict the least recently used tables until there is room for one more; rows keep theirs."""
        idle = [key for key in self._drafters if not self._rows.get(key)]
        while len(self._drafters) >= self._most and idle:
            self._gone.append((idle[0], self._drafters.pop(idle[0]).table))
            self._rows.pop(idle.pop(0), None)
        return len(self._drafters) < self._most

    # the thread's

    def _drop_unasked(self) -> None:
        """Make room among what has arrived and nobody asks for any more: its request has ended."""
        if len(self._arrived) >= self._most:
            late = time.monotonic() - UNASKED
            for key in [key for key in list(self._arrived) if self._asked.get(key, 0.0) < late]:
                self._asked.pop(key, None)
                if (dropped := self._arrived.pop(key, None)) is not None:
                    self._store.refill.forget(dropped.table)

    def _work(self) -> None:
        self._store.forgotten.poll()
        self._renew()
        self._consent.refresh()
        if not self._warm:
            warm_up()
            self._warm = True
        while self._gone:
            self._keep(*self._gone.pop(), least=1.0)
        for key in list(self._wanted):
            self._drop_unasked()
            if len(self._arrived) < self._most:
                drafter = NgramDrafter(self._store.load(*key), self._settings)
                self._asked[key], self._arrived[key] = time.monotonic(), drafter
            self._wanted.pop(key, None)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            for key, drafter in list(self._drafters.items()):
                self._keep(key, drafter.table)
        self._store.forgotten.drop_tables()
        until = time.monotonic() + REFILL
        self._store.refill.run(lambda: self._closing or time.monotonic() > until)

    def _renew(self) -> None:
        """Replace tables that were born before something was forgotten.

        Rows keep their places, their own tables, and the trust in the shared one; the engine's thread sees either
        table, both are whole.
        """
        for key, drafter in [*list(self._drafters.items()), *list(self._arrived.items())]:
            old = drafter.table
            if old.born < self._store.forgotten.line:
                drafter.table = self._store.anew(*key, old)

    def _keep(self, key: Key, table: Table, **how: float) -> None:
        """Save what a route's table has learned. A tenant's own is never written."""
        if not key[1]:
            self._store.keep(key[0], table, **how)

    def close(self) -> None:
        """End the thread, and save every table that has learned."""
        self._closing = True
        self._worker.close()
        for key, table in [*self._gone, *((key, drafter.table) for key, drafter in self._drafters.items())]:
            try:
                self._keep(key, table, least=1.0)
            except OsdError as error:
                log.warning("a table was not kept: %s", error, extra={"action": "table_not_kept"})


def warm_up() -> None:
    """Compile what decoding will call, or load what an earlier process compiled."""
    drafter = NgramDrafter(Table(TableSettings(memory=1 << 16)), SearchSettings(searches=1, own_slots=64))
    place = drafter.open(np.arange(4))
    drafter.learn(place, np.arange(6), 4)
    drafter.propose([place], [[1, 2]], [4], [2])
    rates = new_rates()
    count_predicted(drafter, rates, place, np.arange(6), 4, sampled=False)
    group = TableGroup(drafter, rates, [place], [[1, 2]], [False], 1)
    group.look_up(0)
    group.choose(0, [3], [0.5])
    group.count_drafted(0, [3])
