"""The drafts that a running engine uses: newer versions, and drafts that are asked for.

One thread follows all drafts (:mod:`osd.hotswap.follower`): the default one, those that routes name, and those that a
request was sent to. It loads; the engine takes, between two steps, and reports what found no room.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from osd.drafters.residency import LoadedVersion
from osd.hotswap.canary import CanaryFollower
from osd.hotswap.loader import Loader
from osd.hotswap.succession import Succession, rests
from osd.models.pair import Pair, row_length
from storage.records import DraftVersion
from storage.settings import Settings
from storage.sql.ledger import HEIR_OF
from storage.store import Store
from storage.versions.forks import fork
from storage.versions.heirs import begin_line

log = logging.getLogger(__name__)


class Swap(CanaryFollower[LoadedVersion]):
    """Follows the drafts' weights. The engine's thread calls all but the thread's own methods."""

    def __init__(self, store: Store, draft: str, pair: Pair, settings: Settings, worker: str) -> None:
        """Register the pair's draft as version 0 of the default, ``draft``, if it is new, and start to follow."""
        super().__init__(store, settings, worker)
        self.draft, self.target = draft, pair.target.digest
        self.root = begin_line(store, draft, Path(pair.draft.name), self.target)
        self.serving[draft] = self.root
        self.bases: Collection[str] = frozenset([self.root.digest])
        """Digests of the full weights that are in memory, as the engine reports them."""
        self.gone: set[str] = set()
        """Drafts that no route names any more."""
        self.resting: set[str] = set()
        """Versions with which drafting would lose, as they were judged when the target moved."""
        self._loader = Loader(store, pair, self.root.digest, row_length(pair, settings))
        self._asked: dict[str, None] = {}
        self._routed: frozenset[str] = frozenset()
        if self.target is not None:
            self._open_lines(Succession(store, pair, self._loader, row_length(pair, settings)))
        self._note_rest(self.root)
        self.begin()

    @property
    def version(self) -> str:
        """The version of the default draft that is in use."""
        return self.serving[self.draft].id

    @property
    def judged_alpha(self) -> float | None:
        """The α that this version has by its judgement on the target; None where it is no heir."""
        evidence = self.store.versions.get(self.version).evidence
        return evidence.get("after") if HEIR_OF in evidence else None

    def names(self) -> Sequence[str]:
        """Return the default draft and those that were asked for."""
        return [self.draft, *(name for name in list(self._asked) if name != self.draft)]

    def load(self, version: DraftVersion) -> LoadedVersion:
        """Load a version's weights, or its adapter. An adapter is merged where one draft alone is served: that is a
        little faster, and no other draft would share its base."""
        self._note_rest(version)
        return self._loader.load(version, self.bases, shares=len({*self.names(), *self._routed}) > 1)

    def want(self, draft: str) -> None:
        """Load a draft, soon, and follow its versions."""
        if draft not in self._asked:
            self._asked[draft] = None
            self._wake.set()

    def leave(self, draft: str, *, refuse: str | None = None) -> None:
        """Stop following a draft that has left memory or found no room; ``refuse`` is a version that never will fit."""
        self._asked.pop(draft, None)
        self.serving.pop(draft, None)
        if refuse is not None:
            self._refused.add(refuse)
            log.error(
                "the draft version %s does not fit into serve.draft_memory_mb beside the default draft", refuse,
                extra={"action": "swap_refused", "version": refuse},
            )  # fmt: skip

    def _open_lines(self, succession: Succession) -> None:
        """Begin a line for this target, from the default draft's number 0, of each route's draft that has none, and go
        on with what they have learned about the target before."""
        others = {name for route in self.store.routes.list() for name in route.drafts} - {self.draft}
        for name in others:
            if self._current(name) is None:
                fork(self.store.versions, name, self.root.id)
        succession.carry_over([self.draft, *sorted(others)])

    def _note_rest(self, version: DraftVersion) -> None:
        if rests(self.store, version):
            self.resting.add(version.id)

    def _current(self, name: str) -> DraftVersion | None:
        return self.store.versions.find(name, self.target)

    def _poll(self) -> None:
        routed = frozenset(name for route in self.store.routes.list() for name in route.drafts)
        for name in routed - self._routed - {self.draft}:
            self._asked.setdefault(name)
        self.gone |= self._routed - routed - {self.draft}
        self._routed = routed
        super()._poll()
        for version in self.serving.copy().values() if self.target else ():
            self._note_rest(version)  # an heir may have been judged since it was loaded
        self._trial.judge_due()
