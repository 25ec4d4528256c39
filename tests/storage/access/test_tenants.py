"""What tenants allow decides what is kept, and whose drafts it may train."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import BadInput
from storage.records import Route, RunState
from storage.runs import ClaimTerms
from storage.settings import PrivacySettings, Settings
from storage.sql import audit
from storage.store import Store, open_store
from tests.storage.make import add_root, samples


@pytest.fixture
def drafts(keep_all: Store, tmp_path: Path) -> Store:
    """The default draft, and `own` with the route `own` to it."""
    add_root(keep_all, tmp_path / "model")
    add_root(keep_all, tmp_path / "other", "own")
    keep_all.routes.add(Route("own", "own"))
    return keep_all


def claimed(store: Store, draft: str) -> list[str]:
    """What a run of the draft would train on."""
    run = store.runs.claim(draft, "w", ClaimTerms(1, 0, 60))
    if run is None:
        return []
    store.runs.finish(run, RunState.FAILED)
    return list(run.request_ids)


def test_a_tenant_that_does_not_learn_leaves_nothing(store: Store) -> None:
    store.tenants.allow("acme", learn=False)
    assert store.samples.add([samples(0, tenant="acme")]) is None
    assert store.samples.add([samples(1, tenant="acme"), samples(2)]) is not None
    assert store.samples.recent(limit=9) == ["r2"]
    store.tenants.allow("acme", learn=True)
    store.samples.add([samples(0, tenant="acme")])
    assert store.samples.recent(limit=9) == ["r2", "r0"]


def test_learning_can_be_by_consent_only(settings: Settings) -> None:
    with open_store(settings.model_copy(update={"privacy": PrivacySettings(learn=False)})) as store:
        store.tenants.allow("acme", learn=True)
        store.samples.add([samples(0, tenant="acme"), samples(1)])
        assert store.samples.recent(limit=9) == ["r0"]


def test_a_tenant_that_does_not_share_trains_no_draft_of_others(drafts: Store) -> None:
    drafts.samples.add([samples(0, tenant="acme"), samples(1, tenant="acme", route="own"), samples(2)])
    drafts.tenants.allow("acme", share=False)
    assert claimed(drafts, "default") == ["r2"]
    assert claimed(drafts, "own") == [], "nothing says that the route is its own"
    drafts.routes.pin("acme", "own")
    assert claimed(drafts, "own") == ["r1"]
    assert claimed(drafts, "default") == ["r2"]
    assert drafts.samples.recent("own", limit=9) == ["r1"]
    assert drafts.samples.recent("default", limit=9) == ["r2"], "nor does it judge or replay there"
    assert drafts.samples.waiting("default").requests == 1


def test_a_draft_that_somebody_else_may_use_is_not_its_own(drafts: Store) -> None:
    drafts.samples.add([samples(1, tenant="acme", route="own")])
    drafts.tenants.allow("acme", share=False)
    drafts.routes.pin("acme", "own")
    drafts.routes.pin("zeta", "own")
    assert claimed(drafts, "own") == [], "another tenant is pinned there too"
    drafts.routes.unpin("zeta")
    drafts.routes.add(Route("other", "default", {}, ("own",)))
    assert claimed(drafts, "own") == [], "another route may choose the draft"
    drafts.routes.remove("other")
    assert claimed(drafts, "own") == ["r1"]


def test_sharing_can_be_by_consent_only(settings: Settings, tmp_path: Path) -> None:
    storage = settings.storage.model_copy(update={"holdout": 0.0})
    closed = settings.model_copy(update={"privacy": PrivacySettings(share=False), "storage": storage})
    with open_store(closed) as store:
        add_root(store, tmp_path / "model")
        store.samples.add([samples(0, tenant="acme"), samples(1)])
        assert claimed(store, "default") == []
        store.tenants.allow("acme", share=True)
        assert claimed(store, "default") == ["r0"]


def test_what_was_said_is_in_the_trail(store: Store) -> None:
    store.tenants.allow("acme", share=False, who="ada")
    with store.db.session(read_only=True) as session:
        (change,) = audit.history(session, "acme")
    assert (change.who, change.action) == ("ada", "replay tenant")
    assert change.before["share"] is True and change.after["share"] is False
    assert [one.name for one in store.tenants.list()] == ["acme"]
    for name in ("", "*"):
        with pytest.raises(BadInput, match="names no tenant"):
            store.tenants.allow(name, learn=False)
