"""The read-only query service behind ``osd stats``, ``osd metrics`` and the dashboard.

It returns records and formats nothing. Every method takes one or two transactions that hold no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from storage.insights.change import ChangeRow, change
from storage.insights.cost import CostRow, UndraftedRound, cost_row, plain_round
from storage.insights.positions import PlaceRow, RejectionRow, by_position, by_route, by_token, positions
from storage.insights.runs import RunAnswer, RunTotals, runs, totals
from storage.insights.tokens import TOP, JudgedPositions, TokenRow, judged, tokens
from storage.names import head_of
from storage.outcomes.outcome_window import EVERYTHING, Window
from storage.outcomes.outcomes import AcceptanceRow
from storage.sql.spans import DAY
from storage.store import Store
from storage.versions.feature_kinds import ModelSize, model_size

REQUESTS = 400
"""Newest stored requests that queries about tokens read, on each side."""


@dataclass(frozen=True, slots=True)
class CostAnswer:
    """The cost rows of all drafts, and the model size and b(0) that they rest on."""

    rows: list[CostRow]
    target: ModelSize | None
    plain_round: UndraftedRound | None


class Answers:
    """Queries to a store. Raises StoreError where it cannot be reached or trusted, BadInput for a bad query."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def acceptance(self, window: Window = EVERYTHING, by: Sequence[str] = ()) -> list[AcceptanceRow]:
        """Return acceptance grouped by route, version, controller, tenant, worker, and one of minute, hour, day."""
        return self.store.outcomes.acceptance(by, window)

    def positions(self, window: Window = EVERYTHING, by: Sequence[str] = ()) -> list[PlaceRow]:
        """Return acceptance by position in the draft, grouped by route, version, and one of minute, hour, day."""
        return positions(self.store.db, window, by)

    def change(self, version: str, *, window: float = DAY, confidence: float = 0.95) -> list[ChangeRow]:
        """Return acceptance before and after a version began to serve, ``window`` seconds on either side.

        Raises UnknownVersion.
        """
        return change(self.store.db, version, window, confidence)

    def tokens(self, before: Window, after: Window, *, requests: int = REQUESTS, top: int = TOP) -> list[TokenRow]:
        """Return precision and recall of the most frequent tokens in two sets of stored requests."""
        return tokens(self.judged(before, requests), self.judged(after, requests), top)

    def rejections(self, window: Window = EVERYTHING, *, top: int = 20, requests: int = REQUESTS) -> list[RejectionRow]:
        """Return rejections by position, by route, and by token, in this order."""
        places, routes = self.positions(window), self.acceptance(window, ["route"])
        return [*by_position(places), *by_route(routes), *by_token(self.judged(window, requests), top)]

    def judged(self, window: Window, requests: int = REQUESTS) -> JudgedPositions:
        """Return drafted and emitted tokens of the newest stored requests."""
        return judged(self.store.db, self.store.samples.files, window, requests)

    def runs(self, window: Window = EVERYTHING, *, limit: int = 50) -> list[RunAnswer]:
        """Return the newest training runs, newest first."""
        return runs(self.store.db, window, limit)

    def run_totals(self, window: Window = EVERYTHING) -> list[RunTotals]:
        """Return totals of the training runs, one row a draft; acceptance heads have rows of their own."""
        return totals(self.store.db, window)

    def cost(self, window: Window = EVERYTHING, *, target: ModelSize | None = None) -> CostAnswer:
        """Return costs and savings, one row a draft, the training of its acceptance head included."""
        served, trained = self._served(window), {row.draft: row for row in self.run_totals(replace(window, draft=None))}
        of_lines, db = self.store.targets.of_lines(), self.store.db
        plain = {about: plain_round(db, about) for about in {of_lines.get(name) for name in served}}
        rows = [
            cost_row(name, sums, _together(name, trained), target, self._size(name), plain[of_lines.get(name)])
            for name, sums in served.items()
        ]
        return CostAnswer(rows, target, plain_round(db, self.store.targets.newest()))

    def _served(self, window: Window) -> dict[str, AcceptanceRow]:
        """Return acceptance by draft."""
        drafts = [window.draft] if window.draft else sorted({version.draft for version in self.store.versions.list()})
        found = {name: self.acceptance(replace(window, draft=name)) for name in drafts}
        return {name: rows[0] for name, rows in found.items() if rows}

    def _size(self, draft: str) -> ModelSize | None:
        """Return the size of a draft's root version: an adapter is read beside it and is small."""
        first = min(self.store.versions.list(draft), key=lambda version: version.number, default=None)
        return None if first is None else model_size(self.store.versions.folder(first))


def _together(draft: str, trained: dict[str, RunTotals]) -> RunTotals | None:
    """Return the totals of a draft's runs, with the seconds of its acceptance head's runs added."""
    own, head = trained.get(draft), trained.get(head_of(draft))
    if own is None or head is None:
        return own
    return replace(own, seconds=own.seconds + head.seconds)
