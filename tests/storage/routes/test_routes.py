"""Routes: each change whole, with its line in the trail, or nothing; over SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from storage.errors import (
    BadInput,
    BadPattern,
    DefaultRoute,
    DuplicateRoute,
    NotFound,
    OsdError,
    RouteWithoutDraft,
    UnknownDraft,
    UnknownRoute,
)
from storage.records import Route
from storage.settings import Settings
from storage.sql.audit import login
from storage.store import Store, open_store
from tests.storage.conftest import Clock
from tests.storage.make import add_root, at_once, outcome, samples

DATABASES = True  # see conftest.py

WHO = "ada@tower"
DEFAULT = Route("default", "default")


@pytest.fixture
def routed(keep_all: Store, tmp_path: Path) -> Store:
    """Three drafts with weights, and the routes ``default`` and ``sql``."""
    for draft in ("default", "sql", "small"):
        add_root(keep_all, tmp_path / draft, draft)
    keep_all.routes.add(Route("sql", "sql", {"topic": ["databases"]}), WHO)
    return keep_all


def everything(store: Store) -> list[Any]:
    """Every row of the tables that changes of routes touch."""
    tables = ("routes", "audit", "route_pins", "route_aliases", "route_examples", "sample_requests",
              "outcome_counters", "outcome_log")  # fmt: skip
    with store.db.session(read_only=True) as session:
        return [sorted(map(repr, session.execute(text(f"SELECT * FROM {table}")))) for table in tables]


def actions(store: Store) -> list[str]:
    return [change.action.removeprefix("router ") for change in reversed(store.routes.history())]


def test_a_fresh_store_has_the_default_route(store: Store) -> None:
    assert store.routes.list() == [DEFAULT]
    assert (store.routes.revision(), store.routes.history(), store.routes.pins()) == (0, [], {})
    assert store.routes.add(Route("early", "default")) == Route("early", "default")  # its weights come with a server


def test_a_route_is_kept_as_it_was_given(routed: Store, clock: Clock) -> None:
    wanted = Route("code", "sql", {"language": "EN", "topic": ["go", "go", "c"], "pattern": r"\bfunc\b", "tenant": []},
                   ("small", "sql", "small"))  # fmt: skip
    kept = routed.routes.add(wanted)
    assert kept.matches == {"language": ["en"], "topic": ["go", "c"], "pattern": r"\bfunc\b"}
    assert (kept.candidates, kept.drafts) == (("small",), ("sql", "small"))
    assert routed.routes.get("code") == kept and routed.routes.list()[0] == kept
    assert routed.routes.created()["code"] == clock.seconds
    with pytest.raises(UnknownRoute, match="known: code, default, sql"):
        routed.routes.get("nowhere")


def test_every_change_is_in_the_trail(routed: Store, clock: Clock) -> None:
    routed.routes.change(Route("sql", "small"), "bob@desk")
    routed.routes.pin("acme", "sql")
    routed.routes.rename("sql", "queries", WHO)
    routed.routes.unpin("acme", WHO)
    routed.routes.remove("queries", WHO)
    assert actions(routed) == ["add", "change", "pin", "rename", "unpin", "remove"]
    changed = next(change for change in routed.routes.history() if change.action == "router change")
    assert (changed.who, changed.at, changed.subject) == ("bob@desk", clock.seconds, "sql")
    assert changed.before == {"name": "sql", "draft": "sql", "candidates": [], "matches": {"topic": ["databases"]}}
    assert changed.after == {"name": "sql", "draft": "small", "candidates": [], "matches": {}}
    pinned = next(change for change in routed.routes.history() if change.action == "router pin")
    assert pinned.who == login() and pinned.after == {"tenant": "acme", "route": "sql"}
    numbers = [change.id for change in routed.routes.history()]
    assert numbers == sorted(numbers, reverse=True) and routed.routes.revision() == numbers[0]
    assert len(routed.routes.history(limit=2)) == 2


def test_what_is_the_same_already_is_no_change(routed: Store) -> None:
    before = everything(routed)
    routed.routes.change(Route("sql", "sql", {"topic": "databases"}))
    assert everything(routed) == before
    routed.routes.pin("acme", "sql")
    before = everything(routed)
    routed.routes.pin("acme", "sql")
    assert everything(routed) == before


@pytest.mark.parametrize(
    ("attempt", "error", "words"),
    [
        (lambda routes: routes.add(Route("sql", "small")), DuplicateRoute, "named 'sql' already"),
        (lambda routes: routes.add(Route("go", "go")), UnknownDraft, "no draft named 'go'; known: default, small, sql"),
        (lambda routes: routes.add(Route("go", "sql", candidates=("go",))), UnknownDraft, "'go'"),
        (lambda routes: routes.add(Route("go", "")), RouteWithoutDraft, "none is named"),
        (lambda routes: routes.add(Route("go", "empty")), RouteWithoutDraft, "'empty' has no weights"),
        (lambda routes: routes.add(Route("a b", "sql")), BadInput, "cannot name a route"),
        (lambda routes: routes.add(Route("go", "sql", {"pattern": "a(b"})), BadPattern, r"missing \): a\(b"),
        (lambda routes: routes.add(Route("go", "sql", {"pattern": "(?=a)"})), BadPattern, "look-around"),
        (lambda routes: routes.add(Route("go", "sql", {"pattern": "a" * 1001})), BadPattern, "1001 characters"),
        (lambda routes: routes.add(Route("go", "sql", {"topics": ["go"]})), BadInput, "did you mean 'topic'"),
        (lambda routes: routes.add(Route("go", "sql", {"topic": [3]})), BadInput, "list of words"),
        (lambda routes: routes.add(Route("go", "sql", {"language": ["english"]})), BadInput, "no language"),
        (lambda routes: routes.change(Route("go", "sql")), UnknownRoute, "known: default, sql"),
        (lambda routes: routes.change(Route("sql", "go")), UnknownDraft, "'go'"),
        (lambda routes: routes.change(Route("default", "default", {"topic": ["a"]})), DefaultRoute, "matches no other"),
        (lambda routes: routes.remove("default"), DefaultRoute, "cannot be removed"),
        (lambda routes: routes.remove("go"), UnknownRoute, "'go'"),
        (lambda routes: routes.rename("default", "rest"), DefaultRoute, "cannot be renamed"),
        (lambda routes: routes.rename("sql", "default"), DuplicateRoute, "'default'"),
        (lambda routes: routes.rename("sql", "../up"), BadInput, "cannot name a route"),
        (lambda routes: routes.pin("acme", "go"), UnknownRoute, "'go'"),
        (lambda routes: routes.pin(" ", "sql"), BadInput, "needs a tenant"),
        (lambda routes: routes.unpin("acme"), NotFound, "pinned: none"),
        (lambda routes: routes.apply([Route("new", "sql"), Route("go", "go")], {}), UnknownDraft, "'go'"),
        (lambda routes: routes.apply([Route("new", "sql")], {"acme": "go"}, replace=True), UnknownRoute, "'go'"),
    ],
)  # fmt: skip
def test_what_is_refused_changes_nothing(
    routed: Store, attempt: Callable[[Any], object], error: type[OsdError], words: str
) -> None:
    with routed.db.session() as session:
        session.execute(text("INSERT INTO drafts (name, created_at) VALUES ('empty', 0)"))
    before = everything(routed)
    with pytest.raises(error, match=words):
        attempt(routed.routes)
    assert everything(routed) == before


def test_acceptance_heads_are_no_draft_to_route_to(routed: Store, tmp_path: Path) -> None:
    folder = tmp_path / "head"
    add_root(routed, folder, "other")  # makes the folder
    (folder / "acceptance_head.json").write_text("{}")
    routed.versions.register_root("sql.head", folder)
    with pytest.raises(RouteWithoutDraft, match="acceptance heads"):
        routed.routes.add(Route("go", "sql.head"))


# names


def test_renaming_takes_along_what_is_kept(routed: Store) -> None:
    routed.samples.add([samples(1, route="sql"), samples(2)])
    routed.outcomes.add([outcome(route="sql", request_id="r1")], "w")
    routed.routes.pin("acme", "sql")
    routed.routes.rename("sql", "queries")
    assert routed.routes.pins() == {"acme": "queries"}
    assert [each.route for each in routed.samples.read(["r1", "r2"])] == ["queries", "default"]
    assert routed.samples.waiting("sql").requests == 1
    assert [row.by["route"] for row in routed.outcomes.acceptance(by=["route"])] == ["queries"]
    assert routed.outcomes.recent()[0].route == "queries"
    assert [line.action for line in routed.routes.history("queries")] == ["router rename", "router pin", "router add"]


def test_what_comes_late_under_a_former_name_has_the_new_one(routed: Store) -> None:
    routed.routes.rename("sql", "queries")
    routed.routes.rename("queries", "tables")
    assert routed.routes.plan().aliases == {"sql": "tables", "queries": "tables"}
    routed.samples.add([samples(1, route="sql"), samples(2, route="queries")])
    routed.outcomes.add([outcome(route="sql")], "w")
    assert {each.route for each in routed.samples.read(["r1", "r2"])} == {"tables"}
    assert [row.by["route"] for row in routed.outcomes.acceptance(by=["route"])] == ["tables"]


def test_a_former_name_may_be_taken_again(routed: Store) -> None:
    routed.routes.rename("sql", "queries")
    routed.routes.add(Route("sql", "small"))
    assert routed.routes.plan().aliases == {}
    routed.routes.rename("queries", "tables")
    routed.routes.rename("tables", "queries")
    assert routed.routes.plan().aliases == {"tables": "queries"}
    assert [route.name for route in routed.routes.list()] == ["default", "queries", "sql"]


def test_counters_are_added_to_those_of_a_removed_route_of_that_name(routed: Store) -> None:
    routed.outcomes.add([outcome(route="old"), outcome(route="sql"), outcome(route="sql")], "w")
    routed.routes.rename("sql", "old")
    rows = routed.outcomes.acceptance(by=["route"])
    assert [(row.by["route"], row.requests, row.accepted, row.draft_ms) for row in rows] == [("old", 3, 90, 4.5)]
    assert sum(row.requests for row in routed.outcomes.acceptance(by=["route", "minute"])) == 3


def test_a_purge_after_a_renaming_finds_the_new_name(routed: Store) -> None:
    routed.samples.add([samples(1, route="sql"), samples(2, route="sql"), samples(3)])
    routed.routes.rename("sql", "queries")
    assert routed.samples.purge(request_id="r1").requests == 1  # the rest is written anew
    assert routed.samples.read(["r2"])[0].route == "queries"
    assert routed.samples.purge(route="queries").requests == 1
    assert routed.samples.recent(limit=9) == ["r3"]


def test_removing_leaves_the_samples_and_takes_the_pins(routed: Store) -> None:
    routed.samples.add([samples(1, route="sql")])
    for tenant in ("acme", "*"):
        routed.routes.pin(tenant, "sql")
    gone = routed.routes.remove("sql")
    assert (gone.draft, routed.routes.list(), routed.routes.pins()) == ("sql", [DEFAULT], {})
    assert routed.routes.history()[0].before["pinned"] == ["*", "acme"]
    assert [row.route for row in routed.samples.stats()] == ["sql"]
    assert routed.samples.waiting("sql").requests == 0
    routed.routes.add(Route("sql", "small"))
    assert routed.samples.waiting("small").requests == 1


# many at once


def test_applying_adds_changes_and_pins(routed: Store) -> None:
    routed.routes.add(Route("old", "small"))
    routed.routes.pin("beta", "old")
    wanted = [Route("sql", "small"), Route("new", "sql", {"tenant": ["acme"]}), DEFAULT]
    assert routed.routes.apply(wanted, {"acme": "new"}, WHO) == 3
    assert {route.name for route in routed.routes.list()} == {"default", "new", "old", "sql"}
    assert routed.routes.apply(wanted, {"acme": "new"}, WHO) == 0
    assert routed.routes.apply(wanted, {"acme": "new"}, WHO, replace=True) == 2
    assert {route.name for route in routed.routes.list()} == {"default", "new", "sql"}
    assert routed.routes.pins() == {"acme": "new"}
    assert routed.routes.apply([], {}, WHO, replace=True) == 3
    assert routed.routes.list() == [DEFAULT]


def test_changes_at_once_come_one_after_another(routed: Store, settings: Settings) -> None:
    """Four writers of ten routes each; whoever reads sees revisions that only rise, each with all that came before."""
    start = routed.routes.revision()

    def write(number: int) -> Callable[[], list[int]]:
        def run() -> list[int]:
            seen = []
            with open_store(settings) as mine:
                for turn in range(10):
                    mine.routes.add(Route(f"r{number}-{turn}", "sql"))
                    plan = mine.routes.plan()
                    seen += [plan.revision] * (len(plan.routes) == plan.revision - start + 2)  # default, sql, the new
            return seen

        return run

    results = at_once(*[write(number) for number in range(4)])
    assert all(isinstance(seen, list) and len(seen) == 10 and seen == sorted(seen) for seen in results), results
    assert len(routed.routes.list()) == 42 and routed.routes.revision() == start + 40


def test_nothing_stays_under_the_old_name_however_late_it_comes(routed: Store, settings: Settings) -> None:
    """Three writers keep writing under the name that they know, while a fourth renames the route twice."""

    def write(worker: int) -> Callable[[], None]:
        def run() -> None:
            with open_store(settings) as mine:
                for turn in range(8):
                    number = 100 * worker + turn
                    mine.samples.add([samples(number, route="sql", m=1)])
                    mine.outcomes.add([outcome(request_id=f"r{number}", route="sql")], f"w{worker}")

        return run

    def rename() -> None:
        with open_store(settings) as mine:
            mine.routes.rename("sql", "queries")
            mine.routes.rename("queries", "tables")

    assert at_once(write(1), write(2), write(3), rename) == [None] * 4
    assert [(row.route, row.requests) for row in routed.samples.stats()] == [("tables", 24)]
    assert {(row.by["route"], row.requests) for row in routed.outcomes.acceptance(by=["route"])} == {("tables", 24)}
    assert {each.route for each in routed.outcomes.recent()} == {"tables"}


def test_one_of_two_who_add_the_same_is_told(routed: Store, settings: Settings) -> None:
    def add() -> Route:
        with open_store(settings) as mine:
            return mine.routes.add(Route("go", "sql"))

    done = at_once(*[add] * 3)
    assert sorted(type(each).__name__ for each in done) == ["DuplicateRoute", "DuplicateRoute", "Route"]
    assert actions(routed) == ["add", "add"]
