"""The router that does not guess: the route asked for by name, or the first one."""

from __future__ import annotations

from collections.abc import Sequence

from router.base import Decision
from storage.errors import BadSetting, UnknownRoute
from storage.records import Outcome, Request, Route


class FixedRouter:
    """Sends a request to the route that it names, and every other request to the first route given."""

    def __init__(self, routes: Sequence[Route] = (Route(),)) -> None:
        """Raises BadSetting when there is no route, or when two bear one name."""
        self._routes = {route.name: route for route in routes}
        if not routes:
            raise BadSetting(source="router", key="routes", reason="there must be at least one route")
        if len(self._routes) < len(routes):
            raise BadSetting(source="router", key="routes", reason="two routes bear the same name")
        self._default = routes[0]

    def route(self, request: Request) -> Decision:
        """See :meth:`router.base.Router.route`."""
        if request.route is None:
            return Decision(self._default)
        if request.route not in self._routes:
            raise UnknownRoute(route=request.route, known=", ".join(sorted(self._routes)))
        return Decision(self._routes[request.route], reason="asked for by name")

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """See :meth:`router.base.Router.observe`. There is nothing to learn."""
