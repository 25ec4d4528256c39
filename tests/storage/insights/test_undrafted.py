"""A draft that drafts nothing any more is named, with since when and because of what."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.insights.recent import QUIET, undrafted
from storage.store import Store
from tests.storage.make import add_root, outcome

DATABASES = True  # see conftest.py
SINCE = 1_800_000_000.0


def served(store: Store, version: str, requests: int, drafted: int, at: float = SINCE, **facts: object) -> None:
    judged = {"drafted": drafted, "accepted": drafted // 4, "rejections": drafted // 2, "draft_version": version}
    made = [
        outcome(request_id=f"{version}{at}{i}", finished_at=at + i, controller="goodput", **{**judged, **facts})
        for i in range(requests)
    ]
    store.outcomes.add(made, "here:1")


@pytest.mark.parametrize("before", [0, 5])
def test_a_draft_that_was_turned_off_is_named(store: Store, tmp_path: Path, before: int) -> None:
    version = add_root(store, tmp_path / "model")
    served(store, version, before, 8, SINCE - 100)
    served(store, version, QUIET - 1, 0)
    assert undrafted(store.db) == []
    served(store, version, 1, 0, SINCE + 60)
    (said,) = undrafted(store.db)
    assert said.startswith(f"{version} drafts nothing since 2027-01-15 08:00 UTC, because goodput asks for none: ")
    assert said.endswith("α was 0.33 while it drafted." if before else "nothing of it was ever judged.")
    served(store, version, 1, 1, SINCE + 120)
    assert undrafted(store.db) == []


def test_what_is_no_draft_and_what_serves_no_more_is_not_named(store: Store, tmp_path: Path) -> None:
    version = add_root(store, tmp_path / "model")
    served(store, version, QUIET, 0)
    served(store, "lookup", QUIET, 0, SINCE + 100)
    assert undrafted(store.db) == []
