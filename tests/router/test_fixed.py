"""The fixed route: by name, or the first one; an unknown name is an error that lists the known ones."""

import subprocess
import sys

import pytest

from router.base import Decision, Router
from router.fixed import FixedRouter
from storage.errors import BadSetting, UnknownRoute
from storage.records import DEFAULT_DRAFT, DEFAULT_ROUTE, Request, Route

ROUTES = (Route("sql", "sql-draft"), Route("chat", "chat-draft"))


def test_without_routes_everything_goes_to_the_default() -> None:
    router: Router = FixedRouter()
    decision = router.route(Request((1, 2)))
    assert (decision.name, decision.draft, decision.confidence) == (DEFAULT_ROUTE, DEFAULT_DRAFT, 1.0)


def test_a_request_without_a_wish_takes_the_first_route() -> None:
    assert FixedRouter(ROUTES).route(Request((1,))) == Decision(ROUTES[0])


def test_a_route_asked_for_by_name_is_honoured() -> None:
    decision = FixedRouter(ROUTES).route(Request((1,), route="chat"))
    assert (decision.name, decision.draft) == ("chat", "chat-draft")
    assert "name" in decision.reason


def test_an_unknown_route_names_those_there_are() -> None:
    with pytest.raises(UnknownRoute, match="'poetry'; known: chat, sql"):
        FixedRouter(ROUTES).route(Request((1,), route="poetry"))


@pytest.mark.parametrize("routes", [(), (Route("a"), Route("a", "other"))])
def test_no_route_or_two_of_one_name_is_refused(routes: tuple[Route, ...]) -> None:
    with pytest.raises(BadSetting):
        FixedRouter(routes)


def test_the_router_loads_without_torch() -> None:
    code = "import sys, router.fixed; sys.exit(any(m.split('.')[0] in ('torch', 'celery') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
