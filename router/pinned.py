"""The router of pins: a tenant's requests take the route that an admin chose, whatever they contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.base import Decision
from router.directory import Directory
from storage.records import Outcome, Request, Route


class PinnedRouter:
    """A router to the route that a request names, else that of its tenant's pin (else that of ``*``), else the
    first."""

    reads_text = False

    def __init__(
        self, routes: Sequence[Route], pins: Mapping[str, str], aliases: Mapping[str, str] | None = None
    ) -> None:
        """Index routes and pins (tenant -> route). Raises BadSetting when there is no route, or when two have one
        name."""
        self._directory = Directory(routes, pins, aliases)

    def route(self, request: Request) -> Decision:
        """Return the route. See :meth:`router.base.Router.route`."""
        return self._directory.stated(request) or Decision(self._directory.default, reason="not pinned")

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """Do nothing: there is nothing to learn. See :meth:`router.base.Router.observe`."""
