"""Progressive validation: a router judged on a stream as it would have met it.

Each request is routed with what was known when it came, and what came of it is told when it was known, not before: a
request that took ten seconds teaches nothing to those that arrived meanwhile. So predictions are made before learning,
and the delay is the true one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from router.base import Decision, Router
from storage.records import Outcome, Request


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a stream. Times are Unix seconds, or any other clock that rises."""

    request: Request
    at: float
    done_at: float
    """When its outcomes were known; at least ``at``."""
    outcomes: tuple[Outcome, ...] = ()
    truth: str | None = None
    """The route that it should have taken, where somebody knows."""


@dataclass(frozen=True, slots=True)
class ArrivalResult:
    """What a router did with one arrival."""

    arrival: Arrival
    decision: Decision

    @property
    def right(self) -> bool | None:
        """Whether the route was the true one; None where nobody knows."""
        return None if self.arrival.truth is None else self.decision.name == self.arrival.truth


def validate(router: Router, arrivals: Iterable[Arrival]) -> Iterator[ArrivalResult]:
    """Route every arrival in the order of their times, telling outcomes at theirs; verdicts as they are made.

    An outcome known at the very moment of another request's arrival is told first. Those still under way when the
    stream ends are told after it, so that the router may be asked about later streams. Raises what routing raises.
    """
    under_way: list[tuple[float, int, ArrivalResult]] = []
    for number, arrival in enumerate(sorted(arrivals, key=lambda each: each.at)):
        while under_way and under_way[0][0] <= arrival.at:
            _tell(router, heapq.heappop(under_way)[2])
        verdict = ArrivalResult(arrival, router.route(arrival.request))
        heapq.heappush(under_way, (max(arrival.done_at, arrival.at), number, verdict))
        yield verdict
    while under_way:
        _tell(router, heapq.heappop(under_way)[2])


def accuracy(verdicts: Sequence[ArrivalResult]) -> float | None:
    """Share of the right ones among those whose truth is known; None where none is."""
    known = [verdict.right for verdict in verdicts if verdict.right is not None]
    return sum(known) / len(known) if known else None


def _tell(router: Router, verdict: ArrivalResult) -> None:
    router.observe(verdict.arrival.request, verdict.decision, verdict.arrival.outcomes)
