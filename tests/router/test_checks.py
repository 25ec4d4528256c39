"""Every router passes the list of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from router.auto import AutoRouter
from router.base import Router
from router.classifier import ClassifierRouter
from router.fixed import FixedRouter
from router.live import LiveRouter
from router.throughput import Costs
from storage.settings import load_settings
from storage.store import open_store
from tests.router.checks import CHECKS, ROUTES, Make
from tests.router.words import Known, classifier
from tests.storage.make import add_root

ROUTERS: dict[str, Make] = {
    "fixed": lambda: FixedRouter(ROUTES),
    "pinned": lambda: FixedRouter(ROUTES, {"somebody else": "sql"}),
    "classifier": lambda: classifier(ROUTES),
    "classifier without models": lambda: classifier(ROUTES, None),
    "auto": lambda: AutoRouter(classifier(ROUTES), lambda _: Costs(1.0, [4.0, 4.5, 5.0, 5.5])),
    "auto before costs are known": lambda: AutoRouter(classifier(ROUTES), lambda _: None),
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """The router that serving uses, over a store that holds the routes."""
    folder = tmp_path_factory.mktemp("live")
    with open_store(load_settings(storage={"directory": folder / "data"})) as store:
        for draft in sorted({draft for route in ROUTES for draft in route.drafts}):
            add_root(store, folder / draft, draft)
        store.routes.apply(ROUTES, {})
        opened: list[LiveRouter] = []

        def make() -> Router:
            opened.append(LiveRouter(store, lambda plan: ClassifierRouter(plan, Known(None)), 60.0))
            return opened[-1]

        yield make
        for router in opened:
            router.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", ROUTERS)
def test_it_keeps_the_promise(name: str, check: Callable[[Make], None]) -> None:
    check(ROUTERS[name])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_the_live_router_keeps_it(live: Make, check: Callable[[Make], None]) -> None:
    check(live)
