"""Serving processes: who lives, who is gone, who is to drain."""

from __future__ import annotations

from typing import Any

import pytest

from storage.access.processes import FORGET_SECONDS, ServerState, ServingProcess
from storage.errors import UnknownServer
from storage.sql import audit
from storage.store import Store
from tests.storage.conftest import Clock
from tests.storage.make import at_once, write_weights

DATABASES = True  # see conftest.py


def worker(name: str, at: float, **changes: Any) -> ServingProcess:
    """One that started at, and was heard of at, a time; it is believed for ten seconds."""
    facts = {"host": "here", "pid": 7, "url": "http://here:8000", "started_at": at, "heartbeat_at": at}
    return ServingProcess(**{"id": name, **facts, "gone_at": at + 10, **changes})


def states(store: Store) -> dict[str, ServerState]:
    return {each.id: each.state for each in store.servers.list()}


def test_what_a_worker_says_is_what_is_listed(store: Store, clock: Clock) -> None:
    holds = {"default": {"version": "default-000001-ab", "digest": "ab" * 32}}
    said = worker("a", clock.seconds, drafts=holds, running=3, waiting=1, rate=2.5, trouble="it does not fit")
    assert store.servers.beat(said) is False
    assert store.servers.list() == [said]


def test_one_that_is_not_heard_of_is_gone_and_may_come_back(store: Store, clock: Clock) -> None:
    store.servers.beat(worker("a", clock.seconds))
    store.servers.beat(worker("b", clock.seconds + 5))
    clock.seconds += 10.5
    assert states(store) == {"a": ServerState.GONE, "b": ServerState.SERVING}
    store.servers.beat(worker("a", clock.seconds - 10, gone_at=clock.seconds + 10))
    assert set(states(store).values()) == {ServerState.SERVING}


def test_one_that_stops_in_order_leaves_nothing(store: Store, clock: Clock) -> None:
    store.servers.beat(worker("a", clock.seconds))
    store.servers.end("a")
    store.servers.end("a")
    assert store.servers.list() == []


def test_one_that_follows_another_takes_its_row_away(store: Store, clock: Clock) -> None:
    store.servers.beat(worker("a", clock.seconds))
    store.servers.beat(worker("b", clock.seconds), replaces="a")
    assert list(states(store)) == ["b"]


def test_what_is_long_gone_is_forgotten_with_what_it_served(store: Store, clock: Clock, tmp_path: Any) -> None:
    write_weights(tmp_path / "draft", 1.0)
    root = store.versions.register_root("default", tmp_path / "draft")
    for name in ("a", "b"):
        store.servers.beat(worker(name, clock.seconds))
        store.versions.mark_serving(root.id, name)
    store.versions.mark_serving(root.id, "somebody who tells of no heartbeat")
    clock.seconds += 11
    store.servers.beat(worker("b", clock.seconds))
    assert set(store.versions.serving()) == {"b", "somebody who tells of no heartbeat"}
    assert store.versions.served_by("a") == {"default": root.id}
    clock.seconds += FORGET_SECONDS
    store.servers.beat(worker("b", clock.seconds))
    assert list(states(store)) == ["b"] and store.versions.served_by("a") == {}


def test_draining_is_asked_for_undone_and_noted(store: Store, clock: Clock) -> None:
    alive = worker("a", clock.seconds)
    store.servers.beat(alive)
    assert store.servers.ask_drain("a", who="ada").drains and store.servers.ask_drain("a", who="ada").drains
    assert store.servers.beat(alive) is True and not store.servers.list()[0].alive
    assert not store.servers.ask_drain("a", undo=True, who="bob").drains
    assert store.servers.beat(alive) is False
    with store.db.session(read_only=True) as session:
        undone, asked = audit.history(session, "a")
    assert (asked.who, asked.action, undone.who, undone.after) == ("ada", "servers drain", "bob", {"drains": False})


def test_who_starts_anew_under_the_same_name_is_not_told_to_drain(store: Store, clock: Clock) -> None:
    store.servers.beat(worker("a", clock.seconds))
    store.servers.ask_drain("a")
    assert store.servers.beat(worker("a", clock.seconds + 1)) is False


def test_only_one_that_lives_can_drain_and_the_error_names_them(store: Store, clock: Clock) -> None:
    with pytest.raises(UnknownServer, match="'a'; known: none"):
        store.servers.ask_drain("a")
    store.servers.beat(worker("a", clock.seconds))
    clock.seconds += 11
    store.servers.beat(worker("b", clock.seconds))
    for name in ("a", "c"):
        with pytest.raises(UnknownServer, match="known: b"):
            store.servers.ask_drain(name)


def test_a_wish_is_not_lost_to_a_heartbeat_at_the_same_time(store: Store, clock: Clock) -> None:
    alive = worker("a", clock.seconds)
    for _ in range(5):
        store.servers.beat(alive)
        at_once(lambda: store.servers.ask_drain("a"), *[lambda: store.servers.beat(alive)] * 3)
        assert store.servers.beat(alive) is True
        store.servers.end("a")
