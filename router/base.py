"""What a router is: it sees a request and answers which route it takes, and which draft should serve it.

A :class:`~storage.records.Route` is a rule that people write down ("SQL goes to this draft"). A
:class:`Decision` is what a router made of it for one request: the route, the draft, how sure it is, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from storage.records import Outcome, Request, Route


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a router expects of one draft for one request."""

    draft: str
    alpha: float
    """Token acceptance rate, in [0, 1]."""
    tokens_per_s: float | None = None
    """Throughput that follows from it and from measured costs; None before costs are known."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The route and the draft chosen for one request, and why."""

    route: Route = field(default_factory=Route)
    confidence: float = 1.0
    """How sure the router is of the route, in [0, 1]; 1 where nothing had to be guessed."""
    reason: str = "fixed"
    """A word or a short sentence for people: ``asked for by name``, ``language=de``, …"""
    language: str | None = None
    """Of the prompt, as ISO 639-1 (else 639-3); None where nobody looked."""
    topic: str | None = None
    """Of the prompt; None where nobody looked or it is unsure."""
    estimates: tuple[Estimate, ...] = ()
    """One a draft that could serve the request, where the router compared them."""
    chosen: str | None = None
    """The draft chosen among the route's candidates; None where it has but one."""

    @property
    def name(self) -> str:
        """The route's name, which every record of the request carries."""
        return self.route.name

    @property
    def draft(self) -> str:
        """The draft that serves the request."""
        return self.chosen or self.route.draft


class Router(Protocol):
    """Chooses a route before decoding, and may learn from how it went.

    What every router promises is a list that runs: tests/router/checks.py.
    """

    @property
    def reads_text(self) -> bool:
        """Whether it looks at the prompt's text now; the engine decodes the tokens for such a router only."""
        ...

    def route(self, request: Request) -> Decision:
        """The route for this request, the same for the same request as long as the routes are. What cannot be told
        takes the default. Raises UnknownRoute when the request asks for a route by a name that is not known."""
        ...

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """What came of a request that was routed. Called from the decoding thread: it returns at once and never
        raises, whatever it is told."""
        ...
