"""Progressive validation: a router evaluated on a stream of requests, with outcomes arriving at their true times.

Each request is routed with what was known when it arrived, and its outcomes are observed when they were known, not
before: a request that took ten seconds teaches nothing to those that arrived meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from router.base import Decision, Router
from storage.records import Outcome, Request


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a stream. Times are Unix seconds, or any other increasing clock."""

    request: Request
    at: float
    done_at: float
    """Time at which its outcomes were known; at least ``at``."""
    outcomes: tuple[Outcome, ...] = ()
    truth: str | None = None
    """The route that it should have taken, if known."""


@dataclass(frozen=True, slots=True)
class ArrivalResult:
    """The router's decision on one arrival."""

    arrival: Arrival
    decision: Decision

    @property
    def right(self) -> bool | None:
        """Whether the route was the true one; None where that is unknown."""
        return None if self.arrival.truth is None else self.decision.name == self.arrival.truth


def validate(router: Router, arrivals: Iterable[Arrival]) -> Iterator[ArrivalResult]:
    """Route every arrival in order of time, observing outcomes at their times; yield verdicts as they are made.

    An outcome known at the moment of another request's arrival is observed first. Those still pending when the
    stream ends are observed after it, so that the router may be asked about later streams. Raises what routing raises.
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
    """Return the share of right decisions among those whose truth is known; None where there are none."""
    known = [verdict.right for verdict in verdicts if verdict.right is not None]
    return sum(known) / len(known) if known else None


def _tell(router: Router, verdict: ArrivalResult) -> None:
    router.observe(verdict.arrival.request, verdict.decision, verdict.arrival.outcomes)
