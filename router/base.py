"""What a router is: it sees a request and answers which draft should serve it.

A :class:`~storage.records.Route` is a rule that people write down ("SQL goes to this draft"). A
:class:`Decision` is what a router made of it for one request: the route, how sure it is, and why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from storage.records import Request, Route


@dataclass(frozen=True, slots=True)
class Decision:
    """The route chosen for one request, and why."""

    route: Route = field(default_factory=Route)
    confidence: float = 1.0
    """How sure the router is, in [0, 1]; 1 where nothing had to be guessed."""
    reason: str = "fixed"
    """A word or a short sentence for people: ``asked for by name``, ``language=de``, …"""

    @property
    def name(self) -> str:
        """The route's name, which every record of the request carries."""
        return self.route.name

    @property
    def draft(self) -> str:
        """The draft that serves the request."""
        return self.route.draft


class Router(Protocol):
    """Chooses a route before decoding. How it went stands in storage's outcomes, by route and version."""

    def route(self, request: Request) -> Decision:
        """The route for this request. Raises UnknownRoute when it asks for one by a name that is not known."""
        ...
