"""The router that does not guess: the route asked for by name, or the first one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.base import Decision
from router.directory import Directory
from storage.records import Outcome, Request, Route


class FixedRouter:
    """Sends a request to the route that it names, and every other request to the first route given."""

    reads_text = False

    def __init__(self, routes: Sequence[Route] = (Route(),), aliases: Mapping[str, str] | None = None) -> None:
        """Raises BadSetting when there is no route, or when two bear one name."""
        self._directory = Directory(routes, aliases=aliases)

    def route(self, request: Request) -> Decision:
        """See :meth:`router.base.Router.route`."""
        return self._directory.stated(request) or Decision(self._directory.default)

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """See :meth:`router.base.Router.observe`. There is nothing to learn."""
