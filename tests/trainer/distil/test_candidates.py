"""Drafts that a route might use and does not: they learn from its traffic, beside the draft that serves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.records import DEFAULT_DRAFT, Route, RunState
from storage.runs import TAKEN_UNTIL
from storage.settings import Settings
from storage.store import Store
from tests.trainer.conftest import Traffic
from tests.trainer.models import tiny_llama
from trainer.distil.loop import run_once
from trainer.worker.rollback_watch import RollbackWatch


@pytest.fixture
def both(drafted: Store, tmp_path: Path) -> Store:
    """The default route with a second draft that it might use, and a route of that one's own."""
    tiny_llama(5).save_pretrained(tmp_path / "other")
    drafted.versions.register_root("other", tmp_path / "other")
    drafted.routes.change(Route("default", DEFAULT_DRAFT, candidates=("other",)))
    drafted.routes.add(Route("own", "other"))
    return drafted


def test_a_candidate_learns_from_the_routes_traffic_which_stays_the_serving_drafts(
    both: Store, settings: Settings, traffic: Traffic
) -> None:
    sent, held = traffic(8, held_out=False), traffic(5, held_out=True)
    run = run_once(both, settings, "other", "me")
    assert run is not None and run.state is RunState.PUBLISHED
    assert set(run.request_ids) == {s.request_id for s in sent}
    evidence = both.versions.current("other").evidence
    assert evidence["held_out"] == len(held) and evidence["fresh"] == evidence["trained_on"] == 0
    assert evidence["after"] > evidence["before"]
    assert both.samples.waiting("default").requests == 8
    served = run_once(both, settings, DEFAULT_DRAFT, "me")
    assert served is not None and set(served.request_ids) == set(run.request_ids)


def test_its_next_run_takes_what_is_newer_and_replays_what_it_took(
    both: Store, settings: Settings, traffic: Traffic
) -> None:
    first, later = traffic(8, held_out=False), []
    runs = [run_once(both, settings, "other", "me")]
    assert run_once(both, settings, "other", "me") is None
    later = traffic(8, held_out=False)
    fresh = traffic(3, held_out=False)
    runs.append(run_once(both, settings.changed(learn={"max_requests": 8}), "other", "me"))
    last = runs[1]
    assert last is not None and set(last.request_ids) == {s.request_id for s in later}
    assert last.result["replayed"] == len(first)
    assert last.result["evidence"]["fresh"] == len(fresh)  # trained on by nobody


def test_what_was_refused_of_another_draft_says_nothing_of_this_one(
    both: Store, settings: Settings, traffic: Traffic
) -> None:
    own = settings.changed(learn={"positions": "rejected"})
    traffic(8, held_out=False)  # every position accepted
    run = run_once(both, own, "other", "me")
    assert run is not None and run.settings["positions"] == "verified" and run.result["positions"] > 0


def test_a_draft_with_a_route_of_its_own_learns_from_that_first(
    both: Store, settings: Settings, traffic: Traffic
) -> None:
    beside, own = traffic(8, held_out=False), traffic(8, held_out=False, route="own")
    first, second = (run_once(both, settings, "other", "me") for _ in range(2))
    assert first is not None and set(first.request_ids) == {s.request_id for s in own}
    assert TAKEN_UNTIL not in first.settings
    assert second is not None and set(second.request_ids) == {s.request_id for s in beside}
    assert both.samples.waiting("other").requests == 0


def test_who_is_no_candidate_has_nothing_to_learn_there(both: Store, settings: Settings, traffic: Traffic) -> None:
    traffic(8, held_out=False)
    both.routes.change(Route("default", DEFAULT_DRAFT))
    assert run_once(both, settings, "other", "me") is None


def test_the_watch_judges_it_on_the_routes_that_it_might_serve(
    both: Store, settings: Settings, traffic: Traffic
) -> None:
    both.routes.remove("own")
    traffic(8, held_out=False)
    run_once(both, settings, "other", "me")
    watch = RollbackWatch(both, settings.changed(gate={"watch_requests": 4}), "other")
    traffic(5)
    assert watch.compare_if_due() is None and watch.newest is not None and watch.newest.requests == 5
