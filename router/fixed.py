"""A router without rules: the route requested by name, or the first one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.base import Decision
from router.directory import Directory
from storage.records import Outcome, Request, Route


class FixedRouter:
    """A router that sends a request to the route that it names, and every other request to the first route."""

    reads_text = False

    def __init__(self, routes: Sequence[Route] = (Route(),), aliases: Mapping[str, str] | None = None) -> None:
        """Index the routes. Raises BadSetting when there is no route, or when two have one name."""
        self._directory = Directory(routes, aliases=aliases)

    def route(self, request: Request) -> Decision:
        """Return the route. See :meth:`router.base.Router.route`."""
        return self._directory.stated(request) or Decision(self._directory.default)

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """Do nothing: there is nothing to learn. See :meth:`router.base.Router.observe`."""
