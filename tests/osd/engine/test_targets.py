"""Sessions over one store with targets that change: what each records and drafts with names its target."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from osd.engine.session import serving
from osd.models.pair import Pair, load_pair
from storage.names import line_name
from storage.records import Request, Route
from storage.settings import Settings, load_settings
from storage.store import Store
from storage.versions.forks import fork
from tests.support.models import noisy, prompts, random_module
from tests.support.waiting import until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    serve = {"max_batch": 2, "max_length": 96, "swap_poll_seconds": 0.05}
    return load_settings(storage={"directory": tmp_path / "data"}, serve=serve)


@pytest.fixture
def pairs(tmp_path: Path) -> list[Pair]:
    """Two targets and one draft, in folders."""
    target = random_module("llama")
    noisy(target, 0.3).save_pretrained(tmp_path / "draft")
    for name, noise in (("one", 0.0), ("two", 0.1)):
        noisy(target, noise).save_pretrained(tmp_path / name)
    return [load_pair(tmp_path / name, tmp_path / "draft", device="cpu") for name in ("one", "two")]


def serve(store: Store, settings: Settings, pair: Pair) -> set[str]:
    """Serve two requests of each route, and two more once each draft is loaded; the versions that drafted."""
    with serving(pair, settings, store) as engine:
        routes, swap = store.routes.list(), engine.swap
        assert swap is not None

        def some() -> set[str]:
            asked = [Request(p, 8, route=one.name) for one in routes for p in prompts(2, seed=len(one.name))]
            return {r.draft_version for done in engine.run(asked) for r in done.rounds}

        used = some()
        until(lambda: swap.ready or {route.draft for route in routes} <= set(swap.serving))
        return used | some()


def test_each_target_has_lines_and_samples_of_its_own(
    store: Store, settings: Settings, pairs: list[Pair], caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (str(pair.target.digest) for pair in pairs)
    with caplog.at_level(logging.WARNING):
        serve(store, settings, pairs[0])
        assert "The target changed" not in caplog.text
        fork(store.versions, "sql", store.versions.current("default").id)
        store.routes.add(Route("sql", "sql"))
        assert {store.targets.of_lines()[version.draft] for version in map(store.versions.get, served(store))} == {one}
        used = serve(store, settings, pairs[1])
        assert caplog.text.count("The target changed") == 1
    lines = {line_name(name, two) for name in ("default", "sql")}
    assert {store.versions.get(version).draft for version in used} == lines
    assert set(store.versions.lines(["default", "sql"])) == {"default", "sql", *lines}
    kept = store.samples.read(store.samples.recent(limit=100))
    assert {(one_.target, store.targets.of_lines()[store.versions.get(one_.draft_version).draft]) for one_ in kept} == {
        (one, one), (two, two)
    }  # fmt: skip


def served(store: Store) -> set[str]:
    return {outcome.draft_version for outcome in store.outcomes.recent()}
