"""Loads tables of n-grams for routes, and saves what they have learned.

What was forgotten is in none of them: a table that was born before the newest entry about forgetting is neither loaded
nor saved. In its place comes one that begins with the corpus, or with nothing, and learns from recorded requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from osd.drafters.model_free import TAIL
from osd.drafters.ngram import BadTable
from osd.drafters.ngram.cells import LARGEST_TOKEN
from osd.drafters.ngram.files import keep_table, load_table, read_facts, require_tokenizer
from osd.drafters.ngram.table import Table, TableSettings
from osd.models.pair import Pair
from osd.models.vocabulary import digest_of_tokens
from storage.errors import ForgottenSince, OsdError, PairError, SegmentDamaged, WeightsDamaged
from storage.forget import Forgetter
from storage.records import DEFAULT_ROUTE, DraftVersion, RequestSamples
from storage.replay.samples import SampleStore
from storage.settings import NgramSettings
from storage.sql.forgotten import TABLE_KIND, born_after
from storage.store import Store

log = logging.getLogger(__name__)

LOOK, AGAIN = 2.0, 10.0
"""Seconds from one look to the next, and after one that failed."""


class ForgottenLog:
    """How far a server has read about forgetting. One thread polls, others may read what it found."""

    def __init__(self, forgetter: Forgetter) -> None:
        self._forgetter, self._due, self._dropped = forgetter, 0.0, 0
        self.line = 0
        """The newest entry about forgetting that was seen."""
        self.request_ids: frozenset[str] = frozenset()
        """Ids of requests forgotten, up to that entry. Some may run, or be still to come."""

    def poll(self) -> None:
        """Poll the store, if it is time. Raises StoreError."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + AGAIN
        news = self._forgetter.news(self.line)
        if news.line > self.line:
            self.request_ids |= news.request_ids  # before the line: what begins after it learns from none of them
            self.line = news.line
        self._due = time.monotonic() + LOOK

    def drop_tables(self) -> None:
        """Drop stored tables once for each entry seen, as :meth:`storage.forget.Forgetter.drop_tables`. Raises
        StoreError."""
        if self._dropped < (line := self.line):
            self._forgetter.drop_tables()
            self._dropped = line


BATCH = 256
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
    tenant: str = ""
    """Whose requests it learns from; those of all that share where it is empty."""
    ids: list[str] | None = None
    """Requests, newest first; None until the store was asked."""


class Refill:
    """Tables that have not learned from the recorded requests yet. One thread uses it."""

    def __init__(self, samples: SampleStore, vocabulary: int, target: str | None = None) -> None:
        self.samples, self._vocabulary, self._target = samples, vocabulary, target
        self._todo: dict[Table, RefillState] = {}

    def begin(self, table: Table, route: str, tenant: str = "") -> None:
        """Have a table learn from a route's requests, as :class:`RefillState` says."""
        self._todo[table] = RefillState(route, table.evicted + LOST * len(table.cells.keys), tenant)

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
                whose: dict[str, Any] = {"routes": [left.route], "tenant": left.tenant or None}
                left.ids = self.samples.recent(limit=MOST, target=self._target, **whose)
            while left.ids and table.evicted <= left.full:
                if stop():
                    return
                self._learn(table, left.ids[:BATCH], left.tenant)
                left.ids = left.ids[BATCH:]
            del self._todo[table]

    def _learn(self, table: Table, ids: list[str], tenant: str) -> None:
        try:
            for request in usable_requests(self.samples, ids, self._vocabulary, tenant):
                learn_output(table, request)
        except SegmentDamaged as error:
            log.warning("%s", error, extra={"action": "table_refill"})


def usable_requests(
    samples: SampleStore, ids: Sequence[str], vocabulary: int, tenant: str = ""
) -> list[RequestSamples]:
    """Return those of the kept requests, in their order, that a server may draft from for a tenant, its own, or for
    everybody: of tenants that share; without forgotten ones and those of another tokenizer. Raises SegmentDamaged,
    StoreError."""
    found = samples.without_forgotten(samples.read(ids))
    whose = {each: each == tenant or samples.tenants.get(each).share for each in {one.tenant for one in found}}
    return [request for request in found if whose[request.tenant] and request.tokens.max(initial=0) < vocabulary]


def learn_output(table: Table, request: RequestSamples) -> None:
    """Learn a request's output, as a table would have while it served the request."""
    tokens = request.tokens.astype(np.int64)
    for first in range(request.prompt_len, len(tokens), PIECE):
        begin = max(0, first - TAIL)
        table.learn(tokens[begin : first + PIECE], first - begin)


GROWN = 1.1
"""Growth in learned tokens, relative to its newest version, at which a table is worth another version."""


class TableStore:
    """The versions of one engine's tables."""

    def __init__(self, pair: Pair, ngram: NgramSettings, store: Store) -> None:
        """Raises ModelFileDamaged and OtherTokenizer for ``ngram.corpus``, BadTable for a vocabulary that is too
        large."""
        if pair.vocab_size - 1 > LARGEST_TOKEN:
            raise BadTable(name="vocabulary", reason=f"{pair.vocab_size} tokens are more than {LARGEST_TOKEN + 1}.")
        self.name, self.corpus, self.versions = ngram.table, ngram.corpus, store.versions
        self.settings, self.vocabulary = TableSettings(ngram.order, ngram.memory_mb << 20), pair.vocab_size
        self.digest = digest_of_tokens(pair.tokenizer, pair.vocab_size)
        self.target = pair.target.digest
        self.forgotten = ForgottenLog(store.forgetter)
        self.refill = Refill(store.samples, pair.vocab_size, self.target)
        self._kept: dict[str, int] = {}
        """Tokens that the newest version has learned, by draft."""
        if self.corpus is not None:
            require_tokenizer(f"The corpus {self.corpus}", read_facts(self.corpus).get("tokenizer"), self.digest)

    def draft(self, route: str) -> str:
        """Return the name of a route's table in the store."""
        return self.name if route == DEFAULT_ROUTE else f"{self.name}.{route}"

    def load(self, route: str, tenant: str = "") -> Table:
        """Load the newest sound version of the route's table, else of the default route's, else the corpus, else an
        empty one. A tenant's own has no versions: see :meth:`anew`.

        What is unsound, or of other tokens, is passed over and logged. Where a version is older than what was
        forgotten, see :meth:`anew`. Raises StoreError.
        """
        if tenant:
            return self.anew(route, tenant)
        for draft in dict.fromkeys((self.draft(route), self.name)):
            if (version := self._current(draft)) is None:
                continue
            if born_after(version.evidence) < self.forgotten.line:
                return self.anew(route)
            if table := self._sound(self.versions.folder(version), version):
                break
        else:
            table = self.fresh(self.corpus)
        table.born = self.forgotten.line
        self._kept[self.draft(route)] = table.learned
        return table

    def anew(self, route: str, tenant: str = "", instead_of: Table | None = None) -> Table:
        """Make a table that has learned from no request yet, and is to, by ``refill``: from a tenant's, or all that are
        shared."""
        table = self.fresh(self.corpus)
        self.refill.begin(table, route, tenant)
        if instead_of is not None:
            self.refill.forget(instead_of)
        if not tenant:
            self._kept[self.draft(route)] = 0
        return table

    def fresh(self, corpus: Path | None = None) -> Table:
        """Make a table of the corpus, or an empty one."""
        table = (corpus and self._sound(corpus, None)) or Table(self.settings)
        table.born = self.forgotten.line
        return table

    def keep(self, route: str, table: Table, *, least: float = GROWN) -> bool:
        """Enter a version, if the table has learned enough since the last; return whether it did.

        One that was born before something was forgotten, or has still to learn from recorded requests, is not entered,
        nor any where a redaction hook says what may be written: it has not seen what tables count. Raises StoreError.
        """
        if self.refill.samples.redactor.hook is not None:
            return False
        draft, learned = self.draft(route), table.learned
        if learned <= least * self._kept.get(draft, 0) or table.born < self.forgotten.line or table in self.refill:
            return False
        try:
            keep_table(self.versions, draft, table, self.digest, self.target)
        except ForgottenSince as error:  # forgotten since the last look
            log.info("%s", error, extra={"action": "table_not_kept"})
            return False
        self._kept[draft] = learned
        return True

    def _current(self, draft: str) -> DraftVersion | None:
        version = self.versions.find(draft, self.target)
        return version if version and version.kind == TABLE_KIND else None

    def _sound(self, folder: Path, version: DraftVersion | None) -> Table | None:
        try:
            if version is not None:
                self.versions.verify(version)
            table = load_table(folder, self.digest, self.settings.memory, self.settings.order)
            self._require_known(folder, table)
        except (WeightsDamaged, PairError, OsdError) as error:
            log.warning("%s", error, extra={"action": "table_refused", "version": version.id if version else None})
            return None
        return table

    def _require_known(self, folder: Path, table: Table) -> None:
        entries = table.snapshot().entries
        largest = int((entries & np.uint32(LARGEST_TOKEN)).max(initial=0))
        if largest >= self.vocabulary:
            raise BadTable(name="token", reason=f"{folder} has token {largest}, the target knows {self.vocabulary}.")
