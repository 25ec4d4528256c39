"""What is advised where a route's traffic moved: each cause with the command that mends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.access.processes import Trainer
from storage.insights.change import drift_advice
from storage.routes.proposals import ProposalKind, RouteProposal
from storage.store import Store
from tests.storage.conftest import Clock
from tests.storage.make import add_root, outcome


@pytest.fixture
def moved(store: Store, tmp_path: Path, clock: Clock) -> RouteProposal:
    add_root(store, tmp_path / "model")
    clock.seconds += 3600
    facts = {"routes": ["default"], "oldest": clock.seconds - 1200, "moved_at": clock.seconds - 600}
    return store.proposals.add(ProposalKind.DRIFT, facts)


def serve(store: Store, clock: Clock, before: int, after: int) -> None:
    """Twenty minutes of forty judged tokens each, the second ten with another number of accepted ones."""
    version, made = store.versions.current("default").id, []
    for minute in range(20):
        accepted = (before if minute < 10 else after) + minute % 3
        made.append(outcome(
            draft_version=version, finished_at=clock.seconds - 1200 + 60 * minute, accepted=accepted,
            rejections=40 - accepted,
        ))  # fmt: skip
    store.outcomes.add(made, "server")


def live(store: Store, clock: Clock) -> None:
    store.trainers.beat(Trainer("one", "here", 1, clock.seconds, clock.seconds, clock.seconds + 30))


def test_who_does_not_follow_is_made_to(store: Store, moved: RouteProposal, clock: Clock) -> None:
    assert "`osd trainer`" in drift_advice(store, moved)
    live(store, clock)
    store.decisions.freeze("default", "for a while")
    assert "frozen" in drift_advice(store, moved) and "`osd drafts resume default`" in drift_advice(store, moved)


def test_less_acceptance_asks_for_a_split_and_the_rest_for_nothing(
    store: Store, moved: RouteProposal, clock: Clock
) -> None:
    live(store, clock)
    assert drift_advice(store, moved).startswith("`osd router split default` finds out"), "nothing was served"
    serve(store, clock, 30, 30)
    assert "not fallen by more than its error" in drift_advice(store, moved)
    serve(store, clock, 30, 2)
    advice = drift_advice(store, moved)
    assert "`osd router split default`" in advice and f"`osd router decline {moved.id}`" in advice


def test_a_route_that_is_gone_and_drift_of_an_earlier_release(store: Store, moved: RouteProposal, clock: Clock) -> None:
    live(store, clock)
    old = store.proposals.add(ProposalKind.DRIFT, {"routes": ["default"]})
    assert "`osd router split default`" in drift_advice(store, old)
    gone = store.proposals.add(ProposalKind.DRIFT, {"routes": ["gone"]})
    assert f"`osd router decline {gone.id}`" in drift_advice(store, gone)
