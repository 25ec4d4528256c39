"""Acceptance before and after a draft version began to serve, and advice on a route whose traffic moved."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from storage.access.processes import TrainerState
from storage.errors import BadInput, UnknownRoute, UnknownVersion
from storage.insights.statistics import Bucket, difference, rate
from storage.outcomes.outcome_window import Window, grouped
from storage.routes.proposals import RouteProposal
from storage.sql.database import Database
from storage.sql.outcome_tables import CounterRow
from storage.sql.spans import DAY, HOUR, MINUTE
from storage.sql.tables import VersionRow
from storage.store import Store

SUMS = ("requests", "accepted", "rejections")
EVERY_ROUTE = "*"
"""The name of the row that sums all routes; no route may be called so."""


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """The change in acceptance that a version brought on one route, or on all of them."""

    route: str
    version: str
    began: int
    """Unix seconds of the first minute in which the version served."""
    before: float | None
    """α of the draft's other versions in the window before ``began``."""
    after: float | None
    """α of this version in the window after ``began``."""
    difference: float | None
    low: float | None
    """Lower end of the difference's confidence interval; None with fewer than two buckets on a side."""
    high: float | None
    requests_before: int
    requests_after: int
    confidence: float
    verdict: str
    """``better``, ``worse``, or ``unclear`` where the interval contains 0 or is unknown."""


def change(db: Database, version: str, window: float, confidence: float) -> list[ChangeRow]:
    """Return the change over all routes together, then on each; empty when the version never served.

    ``window`` is the length in seconds of the stretch on either side. Raises UnknownVersion, and BadInput for a window
    shorter than two minutes or a confidence outside (0, 1).
    """
    if window < 2 * MINUTE:
        raise BadInput(reason=f"A window of {window:g} s is too short: give two minutes or more.")
    if not 0 < confidence < 1:
        raise BadInput(reason=f"A confidence of {confidence:g} is none: give a number between 0 and 1.")
    with db.session(read_only=True) as session:
        row = session.get(VersionRow, version)
        if row is None:
            raise UnknownVersion(version=version)
        began = _began(session, version)
        if began is None:
            return []
        sides = [_side(session, row, began - window, began, False), _side(session, row, began, began + window, True)]
    routes = sorted(sides[0].keys() | sides[1].keys(), key=lambda name: (name != EVERY_ROUTE, name))
    return [_row(route, version, began, sides[0][route], sides[1][route], confidence) for route in routes]


def _began(session: Session, version: str) -> int | None:
    of = CounterRow.draft_version == version
    began: int | None = session.scalar(select(func.min(CounterRow.start)).where(of, CounterRow.span == MINUTE))
    return began


class _Side:
    """The outcomes of one route in one window, as (accepted, judged) a bucket of time."""

    def __init__(self) -> None:
        self.buckets: dict[int, Bucket] = {}
        self.requests = 0

    def add(self, start: int, requests: int, accepted: int, rejections: int) -> None:
        above, below = self.buckets.get(start, (0, 0))
        self.buckets[start] = (above + accepted, below + accepted + rejections)
        self.requests += requests


def _side(session: Session, version: VersionRow, since: float, until: float, itself: bool) -> dict[str, _Side]:
    """Return each route's outcomes in a window, and those of all routes under ``*``."""
    window = Window(since, until, draft=version.draft)
    columns = {"route": CounterRow.route, "version": CounterRow.draft_version, _bucket(until - since): None}
    sides: dict[str, _Side] = defaultdict(_Side)
    for (route, name, bucket), sums in grouped(session, CounterRow, window, columns, SUMS).items():
        if (name == version.id) is itself:
            for of in (EVERY_ROUTE, route):
                sides[of].add(bucket, *map(int, sums))
    return sides


def _bucket(window: float) -> str:
    """Return the bucket length that divides the window into dozens of buckets, if it is long enough."""
    return "minute" if window <= 6 * HOUR else "hour" if window <= 4 * DAY else "day"


def _row(route: str, version: str, began: int, one: _Side, other: _Side, confidence: float) -> ChangeRow:
    before, after = rate([*one.buckets.values()]), rate([*other.buckets.values()])
    gain = None if before.value is None or after.value is None else after.value - before.value
    span = difference(before, after, confidence)
    low, high = (None, None) if span is None else (span.low, span.high)
    verdict = "unclear" if span is None or span.low <= 0 <= span.high else "better" if span.low > 0 else "worse"
    return ChangeRow(
        route, version, began, before.value, after.value, gain, low, high, one.requests, other.requests, confidence,
        verdict,
    )  # fmt: skip


CONFIDENCE = 0.95
"""Two-sided confidence of a change of acceptance, as for a version's."""


def drift_advice(store: Store, proposal: RouteProposal) -> str:
    """Return what to do and the command for it. Raises StoreError."""
    name = str(proposal.facts["routes"][0])
    try:
        draft = store.routes.get(name).draft
    except UnknownRoute:
        return f"The route is gone: `osd router decline {proposal.id}`."
    if hold := store.decisions.holds().get(draft):
        return f"{draft} is {hold.kind.value} and does not follow: `osd drafts resume {draft}` lets it learn."
    if all(trainer.state is TrainerState.GONE for trainer in store.trainers.list()):
        return "No trainer lives, so no draft follows: start `osd trainer`."
    return _by_acceptance(store, proposal, name)


def _by_acceptance(store: Store, proposal: RouteProposal, route: str) -> str:
    settle = f"`osd router decline {proposal.id}` settles this"
    before, after = (rate(side) for side in _sides(store, proposal, route))
    span = difference(before, after, CONFIDENCE)
    if before.value is None or after.value is None or span is None:
        return f"`osd router split {route}` finds out whether the new traffic wins by a draft of its own; {settle}."
    if span.high >= 0:
        return f"Acceptance has not fallen by more than its error: nothing need be done, and {settle}."
    return (
        f"Acceptance fell from {before.value:.3f} to {after.value:.3f}: `osd router split {route}` finds out whether "
        f"the new traffic wins by a draft of its own; else the draft learns it, and {settle}."
    )


def _sides(store: Store, proposal: RouteProposal, route: str) -> tuple[list[Bucket], list[Bucket]]:
    """Return the route's minutes before the newest requests that were compared, and since; none where an earlier
    release found the drift."""
    sides: tuple[list[Bucket], list[Bucket]] = ([], [])
    if "moved_at" not in proposal.facts:
        return sides
    for row in store.outcomes.acceptance(["minute"], Window(proposal.facts["oldest"], route=route)):
        is_new = row.by["minute"] >= proposal.facts["moved_at"] - MINUTE
        sides[is_new].append((row.accepted, row.accepted + row.rejections))
    return sides
