"""The router protocol: for a request, which route it takes and which draft should serve it.

A :class:`~storage.records.Route` is a rule that people write down ("SQL goes to this draft"). A
:class:`Decision` is a router's result for one request: the route, the draft, its confidence, and the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from storage.records import Outcome, Request, Route


@dataclass(frozen=True, slots=True)
class LabelGuess:
    """A classifier's result for a text, such as its language or its topic."""

    label: str | None
    """The label; None where it is undecided."""
    confidence: float
    """Probability that the label, or the best one where it is undecided, is right, in [0, 1]."""
    outside: float = 0.0
    """Distance of the text from everything learned: the higher, the less likely any label is right. Unbounded."""
    doubt: str = ""
    """What speaks against the label, for people."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A router's expectation of one draft for one request."""

    draft: str
    alpha: float
    """Token acceptance rate, in [0, 1]."""
    tokens_per_s: float | None = None
    """Throughput from α and the measured costs; None before costs are known."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The route and the draft chosen for one request, and why."""

    route: Route = field(default_factory=Route)
    confidence: float = 1.0
    """Confidence in the route, in [0, 1]; 1 where nothing was guessed."""
    reason: str = "fixed"
    """A word or a short sentence for people: ``asked for by name``, ``language=de``, …"""
    language: str | None = None
    """The prompt's language, as ISO 639-1 (else 639-3); None where it was not detected."""
    topic: str | None = None
    """The prompt's topic; None where it was not detected or is unsure."""
    estimates: tuple[Estimate, ...] = ()
    """An estimate for each draft that could serve the request, where the router compared them."""
    chosen: str | None = None
    """The draft chosen among the route's candidates; None where it has only one."""

    @property
    def name(self) -> str:
        """The route's name, which every record of the request carries."""
        return self.route.name

    @property
    def draft(self) -> str:
        """The draft that serves the request."""
        return self.chosen or self.route.draft


class Router(Protocol):
    """Chooses a route before decoding, and may learn from the outcome. tests/router/checks.py tests the contract."""

    @property
    def reads_text(self) -> bool:
        """Whether it reads the prompt's text now; only then does the engine decode the tokens."""

    def route(self, request: Request) -> Decision:
        """Return the route for this request, always the same as long as the routes are.

        Undecided requests take the default route. Raises UnknownRoute when the request names an unknown route.
        """

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """Learn from the outcomes of a routed request.

        Called from the decoding thread: it returns at once and never raises.
        """
