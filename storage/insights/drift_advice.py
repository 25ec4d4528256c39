"""What can be done about a route whose traffic moved."""

from __future__ import annotations

from storage.access.trainers import TrainerState
from storage.errors import UnknownRoute
from storage.insights.interval import Bucket, difference, rate
from storage.routes.proposals import RouteProposal
from storage.sql.spans import MINUTE
from storage.store import Store

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
    rows = store.outcomes.acceptance(["minute"], since=proposal.facts["oldest"], route=route)
    for row in rows:
        is_new = row.by["minute"] >= proposal.facts["moved_at"] - MINUTE
        sides[is_new].append((row.accepted, row.accepted + row.rejections))
    return sides
