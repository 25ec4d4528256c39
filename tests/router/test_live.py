"""Changes of routes reach a router that runs: from this process, from another one, and while threads ask it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.classifier import ClassifierRouter
from router.live import LiveRouter
from storage.errors import UnknownRoute
from storage.records import Request, Route
from storage.routes.routes import RoutePlan
from storage.settings import Settings, load_settings
from storage.store import Store, open_store
from tests.support.waiting import until

QUICK = 0.02


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(storage={"directory": tmp_path / "data"})


@pytest.fixture
def live(store: Store) -> Iterator[LiveRouter]:
    router = LiveRouter(store, build, QUICK)
    yield router
    router.close()


def build(plan: RoutePlan) -> ClassifierRouter:
    return ClassifierRouter(plan)


def ask(router: LiveRouter, text: str = "hello", **facts: str) -> str:
    return router.route(Request((1,), text=text, **facts)).name  # type: ignore[arg-type]


def test_a_change_is_heard_of_without_a_restart(store: Store, live: LiveRouter) -> None:
    assert (ask(live, "ticket 7"), live.reads_text) == ("default", False)
    store.routes.add(Route("help", matches={"pattern": "ticket"}))
    until(lambda: ask(live, "ticket 7") == "help")
    assert live.reads_text
    store.routes.pin("acme", "help")
    until(lambda: ask(live, tenant="acme") == "help")
    store.routes.rename("help", "support")
    until(lambda: ask(live, "ticket 7") == "support")
    assert ask(live, route="help") == "support"
    store.routes.remove("support")
    until(lambda: ask(live, tenant="acme") == "default")
    assert not live.reads_text
    with pytest.raises(UnknownRoute):
        ask(live, route="support")
    assert live.revision == store.routes.revision()


def test_another_process_changes_the_routes(settings: Settings, live: LiveRouter) -> None:
    with open_store(settings) as other:
        other.routes.add(Route("help", matches={"tenant": ["acme"]}))
        until(lambda: ask(live, tenant="acme") == "help")
        other.routes.remove("help")
        until(lambda: ask(live, tenant="acme") == "default")


def test_nobody_sees_half_of_a_change(store: Store, live: LiveRouter) -> None:
    """Both tenants are moved from one route to the other at once; a router that was built has both or none of it."""
    for name in ("left", "right"):
        store.routes.add(Route(name))
    store.routes.apply([], {"a": "left", "b": "left"})
    live.refresh()
    stop, seen = threading.Event(), set()

    def watch() -> None:
        while not stop.is_set():
            within = live._within
            seen.add(tuple(within.route(Request((1,), tenant=tenant)).name for tenant in "ab"))

    watchers = [threading.Thread(target=watch) for _ in range(3)]
    for watcher in watchers:
        watcher.start()
    for turn in range(10):
        side = ("right", "left")[turn % 2]
        store.routes.apply([], {"a": side, "b": side})
        until(lambda side=side: ask(live, tenant="b") == side)
    stop.set()
    for watcher in watchers:
        watcher.join()
    assert seen == {("left", "left"), ("right", "right")}


def test_what_cannot_be_built_leaves_the_routes_as_they_were(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def picky(plan: RoutePlan) -> ClassifierRouter:
        if any(route.name == "bad" for route in plan.routes):
            raise ZeroDivisionError("a fault of ours")
        return build(plan)

    router = LiveRouter(store, picky, QUICK)
    store.routes.add(Route("good", matches={"tenant": ["acme"]}))
    until(lambda: ask(router, tenant="acme") == "good")
    store.routes.add(Route("bad"))
    until(lambda: "no look at the routes: a fault of ours" in caplog.text)
    assert ask(router, tenant="acme") == "good"
    store.routes.remove("bad")
    store.routes.pin("other", "good")
    until(lambda: ask(router, tenant="other") == "good")
    router.close()
    assert caplog.text.count("no look at the routes") == 1


def test_closing_ends_the_thread(store: Store) -> None:
    router = LiveRouter(store, build, 3600.0)
    assert any(thread.name == "osd-routes" for thread in threading.enumerate())
    router.close()
    router.close()
    assert not any(thread.name == "osd-routes" and thread is router._thread for thread in threading.enumerate())
    assert ask(router) == "default"


def test_a_store_that_cannot_be_read_is_said_at_once(store: Store) -> None:
    before = threading.enumerate()
    with pytest.raises(ZeroDivisionError):
        LiveRouter(store, lambda _: 1 / 0, QUICK)  # type: ignore[return-value,arg-type]
    assert not set(threading.enumerate()) - set(before)
