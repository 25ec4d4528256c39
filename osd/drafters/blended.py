"""The draft model's chain, with tokens put in from an n-gram table where the table is more often right.

A draft's weights learn over hundreds of requests; a table knows a phrase once it has appeared. So where traffic changes
the table drafts first, token by token, and the draft takes over as it learns. Each is trusted by how often it was right
at positions like this one (:mod:`osd.drafters.ngram.predictions`). The result is one chain, so every gamma rule and
both acceptance rules apply unchanged: what the table puts in is drawn from the distribution that has all its mass on
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from weakref import WeakKeyDictionary

from osd.draft import Draft
from osd.drafters.base import DraftRequest
from osd.drafters.loaded_draft import loaded_draft_of
from osd.drafters.model_free import TAIL, text_from
from osd.drafters.ngram.drafter import NgramDrafter
from osd.drafters.ngram.predictions import HitRates, new_rates
from osd.drafters.pool import DraftPool
from osd.drafters.table_override import TableGroup, TableOverride, count_predicted
from osd.drafters.tree import Proposer, teach
from osd.sequence import SequenceState

EXPLORE = 16
"""Period, in rounds, at which the draft is asked for every token, to learn how good it has become."""


class PlacesRows(Proposer, Protocol):
    """A proposer that has a table for every row."""

    def place_of(self, row: SequenceState) -> tuple[NgramDrafter, int] | None:
        """Return the table that the row learns into, and its place there; None while it has none."""


@dataclass(slots=True)
class TablePredictions:
    """What the table predicted for one request, kept for measurements."""

    rates: HitRates
    """How often the table was right, kept up to date."""
    predictions: list[tuple[int, float]] = field(default_factory=list)
    """For each output token, the table's prediction before it was known, and the trust in that."""


class BlendedDrafter:
    """Drafts with the pool's drafts, and tables beside them."""

    def __init__(self, pool: DraftPool, proposer: PlacesRows) -> None:
        self.pool, self.proposer = pool, proposer
        self._rates: WeakKeyDictionary[NgramDrafter, HitRates] = WeakKeyDictionary()
        self._rounds: WeakKeyDictionary[NgramDrafter, int] = WeakKeyDictionary()
        """Rounds in which each table drafted."""
        self._drafting: dict[str, tuple[TableOverride, int]] = {}
        """The newest round's blending and place in it, by request."""
        self.put_in = self.put_in_right = 0
        """Tokens from tables that the target has verified, and those that it accepted."""
        self.watched: dict[str, TablePredictions] | None = None
        """Predictions for measurements, by request id; None where they are not kept."""

    def join(self, row: SequenceState, draft: str) -> None:
        """Assign a draft and a table to a new row; see :meth:`osd.drafters.base.Drafting.join`."""
        self.pool.join(row, draft)
        self.proposer.join(row)

    def leave(self, row: SequenceState) -> None:
        """Drop a row that has ended; see :meth:`osd.drafters.base.Drafting.leave`."""
        self.pool.leave(row)
        self.proposer.leave(row)

    def propose(self, request: DraftRequest) -> Draft:
        """Draft chains; see :meth:`osd.drafters.base.Drafting.propose`."""
        self._drafting.clear()
        for row in request.rows:
            self.proposer.place_of(row)  # a table that has come since counts the text so far, and not this round twice
        return self.pool.propose(replace(request, override=self._override))

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note what was accepted, as :meth:`osd.drafters.base.Drafting.commit`. A token that the draft did not choose
        is one that it has read."""
        self.pool.commit(row, length_before, accepted, draft)
        drafting, newest = self._drafting.get(row.request.id), loaded_draft_of(row).body.newest
        if drafting and newest:
            blending, at = drafting
            judged = min(accepted + 1, newest.lengths[at])
            put_in, right = blending.count_drafted(at, row.tokens[length_before : length_before + judged])
            self.put_in, self.put_in_right = self.put_in + put_in, self.put_in_right + right
        if self.watched is not None:
            self._watch(row, length_before)
        self._count_predicted(row, length_before)
        teach(self.proposer, row, length_before)

    def measure(self, whole_ms: float) -> None:
        """Note the drafting time; see :meth:`osd.drafters.base.Drafting.measure`."""
        self.pool.measure(whole_ms)

    def version(self, row: SequenceState) -> str:
        """Return the version of the row's draft."""
        return self.pool.version(row)

    def _override(self, rows: Sequence[SequenceState], most: int) -> TableOverride:
        """Prepare the tables for rows of one draft that are about to draft at most ``most`` tokens each."""
        drafters: dict[NgramDrafter, tuple[list[int], list[int]]] = {}
        for i, row in enumerate(rows):
            if there := self.proposer.place_of(row):
                members, places = drafters.setdefault(there[0], ([], []))
                members.append(i)
                places.append(there[1])
        groups = [
            (self._group(drafter, places, [rows[i] for i in members], most), members)
            for drafter, (members, places) in drafters.items()
        ]
        has_head = loaded_draft_of(rows[0]).body.drafter.head is not None
        for drafter in drafters:
            self._rounds[drafter] = self._rounds.get(drafter, 0) + 1
        ask = any(not self._rounds[drafter] % EXPLORE for drafter in drafters)
        blending = TableOverride(groups, len(rows), ask_always=ask, has_head=has_head)
        self._drafting |= {row.request.id: (blending, i) for i, row in enumerate(rows)}
        return blending

    def _group(
        self, drafter: NgramDrafter, places: Sequence[int], rows: Sequence[SequenceState], most: int
    ) -> TableGroup:
        sampled = [not row.greedy for row in rows]
        return TableGroup(drafter, self.rates_of(drafter), places, [row.tokens for row in rows], sampled, most)

    def _count_predicted(self, row: SequenceState, start: int) -> None:
        """Count whether the table was right where the target decided, whatever drafted there. Must run before the table
        learns those tokens."""
        if there := self.proposer.place_of(row):
            drafter, place = there
            count_predicted(drafter, self.rates_of(drafter), place, *text_from(row, start), sampled=not row.greedy)

    def _watch(self, row: SequenceState, length_before: int) -> None:
        assert self.watched is not None
        texts = [row.tokens[max(0, end - TAIL) : end] for end in range(length_before, row.length)]
        if there := self.proposer.place_of(row):
            drafter, place = there
            watched = self.watched.setdefault(row.request.id, TablePredictions(self.rates_of(drafter)))
            sampled = [not row.greedy] * len(texts)
            group = TableGroup(drafter, watched.rates, [place] * len(texts), texts, sampled, 1)
            group.look_up(0)
            watched.predictions += group.predictions(0)

    def rates_of(self, drafter: NgramDrafter) -> HitRates:
        """Return how often the draft and this table were right so far."""
        return self._rates.setdefault(drafter, new_rates())
