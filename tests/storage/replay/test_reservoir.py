"""Requests to replay, drawn even over routes and age: beside the same rule over lists, over both databases."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import event

from storage.records import Route, RunState
from storage.replay import reservoir
from storage.settings import Settings
from storage.store import Store, open_store
from tests.storage.make import add_root, claim, samples

DATABASES = True  # see conftest.py
HELD = {"default": 60, "sql": 24, "rare": 3}
Ages = dict[str, list[str]]


@pytest.fixture
def learned(keep_all: Store, tmp_path: Path) -> Store:
    """87 requests of three routes, in no order of routes, that an earlier run learned from."""
    add_root(keep_all, tmp_path / "model")
    for name in ("sql", "rare"):
        keep_all.routes.add(Route(name, "default"))
    routes = [name for name, number in HELD.items() for _ in range(number)]
    random.Random(0).shuffle(routes)
    keep_all.samples.add([samples(number, route=route) for number, route in enumerate(routes)])
    learn_all(keep_all)
    return keep_all


def learn_all(store: Store) -> None:
    store.runs.finish(claim(store), RunState.REJECTED)


def draw(store: Store, limit: int, seed: str) -> list[str]:
    return store.samples.spread("default", limit=limit, seed=seed, holdout=False, claimed_before="this run")


def by_age(store: Store) -> Ages:
    """Return route -> ids, oldest first."""
    return {name: store.samples.recent(routes=[name], limit=999)[::-1] for name in HELD}


def plain(stored: Ages, limit: int, seed: str) -> set[str]:
    """Walk through a route's ages in steps of m: a request is taken whenever the walk passes a multiple of n."""
    chance = random.Random(seed)
    found = set()
    for name, m in reservoir.shares({name: len(ids) for name, ids in stored.items()}, limit, chance).items():
        n = len(stored[name])
        walked = chance.randrange(n) - m
        for request_id in stored[name]:
            passes = (walked + m) // n > walked // n
            walked += m
            found |= {request_id} if passes else set()
    return found


def test_it_draws_what_the_plain_rule_draws_newest_first(learned: Store) -> None:
    stored, newest = by_age(learned), learned.samples.recent(limit=999)
    for limit in (0, 1, 2, 7, 30, 80):
        for seed in ("one", "two"):
            drawn = draw(learned, limit, seed)
            assert (set(drawn), len(drawn)) == (plain(stored, limit, seed), limit)
            assert drawn == [request_id for request_id in newest if request_id in drawn]


def test_routes_give_alike_and_one_with_few_gives_all(learned: Store) -> None:
    route_of = {request_id: name for name, ids in by_age(learned).items() for request_id in ids}
    assert Counter(map(route_of.get, draw(learned, 23, "a"))) == {"default": 10, "sql": 10, "rare": 3}
    assert Counter(map(route_of.get, draw(learned, 9, "a"))) == {"default": 3, "sql": 3, "rare": 3}
    alone = Counter(route_of[draw(learned, 1, str(seed))[0]] for seed in range(90))
    assert set(alone) == set(HELD), "where there is one to give, routes take turns by chance"
    assert min(alone.values()) > 15


def test_every_stretch_of_ages_gives_its_share(learned: Store) -> None:
    ages = by_age(learned)["default"]
    for seed in range(20):
        drawn = set(draw(learned, 23, str(seed)))
        taken = [request_id in drawn for request_id in ages]
        for begin in range(0, 60, 7):
            for end in range(begin, 61, 9):
                assert abs(sum(taken[begin:end]) - (end - begin) * 10 / 60) < 1


def test_over_many_runs_each_request_of_a_route_comes_as_often(learned: Store) -> None:
    seen = Counter(request_id for seed in range(300) for request_id in draw(learned, 23, str(seed)))
    counts = [seen[request_id] for request_id in by_age(learned)["default"]]
    assert sum(counts) == 300 * 10
    assert 25 <= min(counts) <= max(counts) <= 80, "50 each, give or take 6.5"


def test_a_run_that_is_repeated_draws_the_same_and_another_does_not(learned: Store) -> None:
    drawn = draw(learned, 20, "run")
    learned.samples.add([samples(number, route="sql") for number in range(200, 220)])
    assert draw(learned, 20, "run") == drawn, "what came meanwhile has not been learned from"
    assert draw(learned, 20, "another") != drawn


def test_with_fewer_than_asked_for_all_come(learned: Store) -> None:
    assert draw(learned, 500, "a") == learned.samples.recent(limit=999)
    learned.samples.purge(route="sql")
    assert len(draw(learned, 64, "a")) == 63
    learned.samples.purge(everything=True)
    assert draw(learned, 64, "a") == []


def test_what_the_draft_may_not_learn_from_never_comes(settings: Settings, tmp_path: Path) -> None:
    with open_store(settings) as store:
        add_root(store, tmp_path / "model")
        add_root(store, tmp_path / "other", "own")
        store.routes.add(Route("own", "own"))
        store.samples.add([samples(number, tenant="acme" if number % 7 == 0 else "default") for number in range(90)])
        store.samples.add([samples(number, route="own") for number in range(100, 110)])
        learn_all(store)
        store.samples.add([samples(number) for number in range(200, 210)])
        store.tenants.allow("acme", share=False)
        store.samples.purge(request_id="r1")
        store.suspects.set_aside(["r2"], "it cannot be read")
        held_out = set(store.samples.recent(holdout=True, limit=999))
        here = {f"r{number}" for number in range(90) if number % 7} - {"r1", "r2"} - held_out
        assert held_out and set(draw(store, 999, "a")) == here
        assert set().union(*(draw(store, 20, str(seed)) for seed in range(40))) == here


def test_the_run_that_asks_draws_nothing_that_it_claimed(learned: Store) -> None:
    learned.samples.add([samples(number) for number in range(200, 210)])
    run = claim(learned)
    ask = partial(learned.samples.spread, "default", seed=run.id, holdout=False, claimed_before=run.id)
    assert len(run.request_ids) == 10
    assert set(ask(limit=999)).isdisjoint(run.request_ids)
    assert learned.samples.recent("default", limit=999, holdout=False, claimed_before=run.id) == ask(limit=999)


def test_it_counts_once_and_asks_the_index_once_a_route(learned: Store) -> None:
    said: list[tuple[str, object]] = []
    event.listen(learned.db.engine, "before_cursor_execute", lambda *args: said.append((args[2], args[3])))
    draw(learned, 20, "a")
    asked = [each for each in said if "count(" in each[0] or "row_number" in each[0]]
    assert len(asked) == 1 + len(HELD)
    if learned.db.dialect == "sqlite":
        with learned.db.engine.connect() as connection:
            for statement, values in asked[1:]:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
                assert any("USING INDEX ix_sample_requests_route" in row[3] for row in plan), plan
