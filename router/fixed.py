"""Routing by what is stated, nothing guessed: the route that a request names, else that of its tenant's pin, else the
first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.base import Decision
from storage.errors import BadSetting, UnknownRoute
from storage.records import EVERYBODY, Outcome, Request, Route

NAMED = "asked for by name"


class FixedRouter:
    """A router by names, former names and pins (tenant -> route). Immutable; the first route is the default."""

    reads_text = False

    def __init__(
        self,
        routes: Sequence[Route] = (Route(),),
        pins: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Index the routes; without ``pins`` nobody is pinned. Raises BadSetting when there is no route, or when two
        have one name."""
        self.routes = {route.name: route for route in routes}
        if not routes:
            raise BadSetting(source="router", key="routes", reason="there must be at least one route")
        if len(self.routes) < len(routes):
            raise BadSetting(source="router", key="routes", reason="two routes bear the same name")
        self.default = routes[0]
        self._unstated = "fixed" if pins is None else "not pinned"
        self._pins, self._aliases = dict(pins or {}), dict(aliases or {})

    def route(self, request: Request) -> Decision:
        """Return the route. See :meth:`router.base.Router.route`."""
        return self.stated(request) or Decision(self.default, reason=self._unstated)

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """Do nothing: there is nothing to learn. See :meth:`router.base.Router.observe`."""

    def stated(self, request: Request) -> Decision | None:
        """Return the route that the request names, else the one that its tenant is pinned to, else None.

        Raises UnknownRoute when it names one that is not there.
        """
        if request.route is not None:
            return Decision(self._named(request.route), reason=NAMED)
        return self._pinned(request.tenant)

    def _named(self, name: str) -> Route:
        route = self.routes.get(name) or self.routes.get(self._aliases.get(name, name))
        if route is None:
            raise UnknownRoute(route=name, known=", ".join(sorted(self.routes)))
        return route

    def _pinned(self, tenant: str) -> Decision | None:
        """Return the decision for a tenant's own pin, else everybody's; a pin to a route that is not served here is
        skipped."""
        for pinned in (tenant, EVERYBODY):
            if route := self.routes.get(self._pins.get(pinned, "")):
                reason = "every tenant is pinned" if pinned == EVERYBODY else f"{tenant} is pinned"
                return Decision(route, reason=reason)
        return None
