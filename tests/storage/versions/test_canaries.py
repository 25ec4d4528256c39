"""Versions in stages: who tries one, who takes over, and what all others serve meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.records import DraftVersion, VersionState
from storage.store import Store
from storage.versions.canaries import LOST, CanaryState, chosen
from tests.storage.access.test_workers import worker
from tests.storage.conftest import Clock
from tests.storage.make import at_once, stage, write_weights

DATABASES = True  # see conftest.py

NAMES = ("a", "b", "c")
Publish = Callable[[], DraftVersion]


@pytest.fixture
def alive(store: Store, clock: Clock) -> Callable[..., None]:
    """Let workers say that they live; those that are not named are not heard of."""

    def beat(*names: str, seconds: float = 0) -> None:
        clock.seconds += seconds
        for name in names:
            store.servers.beat(worker(name, clock.seconds))

    return beat


@pytest.fixture
def publish(store: Store, tmp_path: Path, clock: Clock) -> Publish:
    """A new current version; the first is served by all, as before there were canaries."""
    count = 0

    def make() -> DraftVersion:
        nonlocal count
        count += 1
        clock.seconds += 1
        if count == 1:
            write_weights(tmp_path / "root", 0.0)
            root = store.versions.register_root("default", tmp_path / "root")
            return store.versions.mark_serving(root.id, "a")
        parent = store.versions.current("default").id
        made = stage(store, parent, float(count))
        return store.versions.promote(made.id)

    make()
    return make


def staged(store: Store, *names: str) -> dict[str, str]:
    """Each asks, in this order: what it should serve."""
    return {name: store.canaries.stage("default", name).version.id for name in names or NAMES}


def state_of(store: Store, version: DraftVersion) -> VersionState:
    return store.versions.get(version.id).state


def test_one_takes_a_new_version_and_the_others_wait(
    store: Store, alive: Callable[..., None], publish: Publish
) -> None:
    alive(*NAMES)
    root, new = store.versions.current("default"), publish()
    first = chosen(new.id, NAMES)
    others = [name for name in NAMES if name != first]
    assert set(staged(store, *others).values()) == {root.id}, "before it was claimed"
    assert store.canaries.list() == []
    assert staged(store, str(first), *others) == {first: new.id, **dict.fromkeys(others, root.id)}
    (canary,) = store.canaries.watched(str(first))
    assert (canary.version, canary.base, canary.claims, canary.state) == (new.id, root.id, 1, CanaryState.WATCHING)
    store.versions.mark_serving(new.id, str(first))
    assert (state_of(store, root), state_of(store, new)) == (VersionState.SERVING, VersionState.READY)


def test_all_at_once_make_one_claim(store: Store, alive: Callable[..., None], publish: Publish) -> None:
    alive(*NAMES)
    for _ in range(3):
        new = publish()
        found = at_once(*[lambda name=name: staged(store, name)[name] for name in (*NAMES, *NAMES)])
        assert found.count(new.id) <= 2 and [row.version for row in store.canaries.list("default")].count(new.id) == 1
        assert [name for name in NAMES if staged(store, name)[name] == new.id] == [chosen(new.id, NAMES)]
        assert store.canaries.release(new.id, {})


def test_a_released_version_is_for_all_and_serving(store: Store, alive: Callable[..., None], publish: Publish) -> None:
    alive(*NAMES)
    root, new = store.versions.current("default"), publish()
    staged(store)
    staged(store)
    assert store.canaries.release(new.id, {"reason": "it held"}) and not store.canaries.take_back(new.id, {})
    assert set(staged(store).values()) == {new.id}
    assert (state_of(store, root), state_of(store, new)) == (VersionState.RETIRED, VersionState.SERVING)
    (canary,) = store.canaries.list()
    assert canary.state is CanaryState.RELEASED and canary.facts == {"reason": "it held"} and canary.settled_at


def test_a_version_that_is_taken_back_is_left_by_all(
    store: Store, alive: Callable[..., None], publish: Publish
) -> None:
    alive(*NAMES)
    root, new = store.versions.current("default"), publish()
    first = str(chosen(new.id, NAMES))
    staged(store, first)
    store.versions.rollback("default", "worse", of=new.id)
    assert set(staged(store, *NAMES).values()) == {root.id}
    (settled,) = [row for row in store.canaries.list() if row.version == new.id]
    assert settled.state is CanaryState.TAKEN_BACK
    assert (state_of(store, root), state_of(store, new)) == (VersionState.SERVING, VersionState.ROLLED_BACK)


def test_when_the_canary_is_lost_another_takes_over(store: Store, alive: Callable[..., None], publish: Publish) -> None:
    alive(*NAMES)
    root, new = store.versions.current("default"), publish()
    first = str(chosen(new.id, NAMES))
    staged(store, first)
    rest = [name for name in NAMES if name != first]
    alive(*rest, seconds=11)
    second = chosen(new.id, rest)
    assert staged(store, *rest, *rest) == {name: new.id if name == second else root.id for name in rest}
    assert store.canaries.list()[0].claims == 2
    alive(first)
    assert staged(store, first) == {first: root.id}, "who comes back does not take it from who took over"


def test_one_that_stops_in_order_does_not_count_as_lost(
    store: Store, alive: Callable[..., None], publish: Publish
) -> None:
    alive(*NAMES)
    new = publish()
    first = str(chosen(new.id, NAMES))
    staged(store, first)
    store.canaries.let_go(first)
    store.servers.end(first)
    staged(store, *[name for name in NAMES if name != first])
    assert (store.canaries.list()[0].claims, store.canaries.list()[0].worker != first) == (1, True)


def test_a_version_that_workers_die_of_is_to_be_taken_back(
    store: Store, alive: Callable[..., None], publish: Publish
) -> None:
    names = [str(number) for number in range(LOST + 2)]
    alive(*names)
    root, new = store.versions.current("default"), publish()
    for _ in range(LOST):
        staged(store, *names)
        (dead,) = [name for name in names if store.canaries.watched(name)]
        names.remove(dead)
        alive(*names, seconds=11)
    stage = store.canaries.stage("default", names[0])
    assert stage.lost and stage.version.id == root.id and stage.canary and stage.canary.version == new.id


def test_one_worker_alone_takes_what_is_current(store: Store, alive: Callable[..., None], publish: Publish) -> None:
    alive("a")
    root, new = store.versions.current("default"), publish()
    assert staged(store, "starts") == {"starts": root.id}, "who is not known yet tries nothing"
    assert staged(store, "a") == {"a": new.id} and store.canaries.list() == []
    store.versions.mark_serving(new.id, "a")
    assert staged(store, "starts") == {"starts": new.id}


def test_when_one_worker_is_left_it_takes_over_and_who_comes_waits(
    store: Store, alive: Callable[..., None], publish: Publish
) -> None:
    alive("a", "b")
    new = publish()
    first = str(chosen(new.id, ["a", "b"]))
    staged(store, first)
    last = "b" if first == "a" else "a"
    alive(last, seconds=11)
    assert staged(store, last) == {last: new.id}
    assert (store.canaries.list()[0].state, store.canaries.list()[0].claims) == (CanaryState.WATCHING, 2)
    alive("z")
    assert staged(store, last, "z") == {last: new.id, "z": store.canaries.list()[0].base}


def test_a_newer_version_waits_until_the_one_before_was_settled(
    store: Store, alive: Callable[..., None], publish: Publish
) -> None:
    alive(*NAMES)
    root, one = store.versions.current("default"), publish()
    staged(store)
    staged(store)
    two = publish()
    assert sorted(staged(store).values()) == sorted([root.id, root.id, one.id])
    store.canaries.release(one.id, {})
    staged(store)
    assert sorted(staged(store).values()) == sorted([one.id, one.id, two.id])
    assert state_of(store, one) is VersionState.SERVING


def test_admins_decide_at_once(store: Store, alive: Callable[..., None], publish: Publish) -> None:
    alive(*NAMES)
    root, one = store.versions.current("default"), publish()
    staged(store)
    staged(store)
    store.versions.promote(one.id)  # it is current and tried: for all now
    assert set(staged(store).values()) == {one.id}
    two = publish()
    staged(store)
    staged(store)
    store.versions.rollback("default", "asked for", to=root.id)
    assert set(staged(store).values()) == {root.id}
    assert {row.version: row.state for row in store.canaries.list()}[two.id] is CanaryState.TAKEN_BACK


def test_a_worker_that_does_not_wait_ends_the_waiting(
    store: Store, alive: Callable[..., None], publish: Publish
) -> None:
    alive(*NAMES)
    new = publish()
    staged(store)
    staged(store)
    store.versions.mark_serving(new.id, "one without fleet.canary")
    assert state_of(store, new) is VersionState.SERVING and set(staged(store).values()) == {new.id}


def test_looks_are_counted_and_what_they_saw_is_kept(
    store: Store, alive: Callable[..., None], publish: Publish
) -> None:
    alive(*NAMES)
    new = publish()
    staged(store)
    store.canaries.note_look(new.id, {"difference": float("nan"), "requests": 8})
    (canary,) = store.canaries.list()
    assert (canary.looks, canary.facts) == (1, {"difference": None, "requests": 8})
