"""What rounds brought, until it is worth telling the event loop: every time that wakes, it takes the interpreter from
the thread that decodes.

A job's first piece, its last one and an error go at once; what comes between waits for a tick, ``pause`` seconds of
the job apart, at which all jobs of that pause are told together. Where many are told, ticks are further apart: to hand
on a piece takes the event loop, and the process that answers HTTP, the same time whether it is of one token or of ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Generic, Protocol, TypeVar

EACH, MOST = 0.005, 0.1
"""Seconds between ticks for each job that is told, and at most: eight are told every 40 ms, twenty and more ten times
a second."""


class Paced(Protocol):
    """Somebody who is told in portions."""

    pause: float
    begun: bool


T = TypeVar("T", bound=Paced)
P = TypeVar("P")


class Outbox(Generic[T, P]):
    """Belongs to the thread that decodes."""

    def __init__(self) -> None:
        self._held: dict[T, tuple[float, list[P]]] = {}
        """When each job is to be told, and what."""

    def __len__(self) -> int:
        return len(self._held)

    def put(self, job: T, piece: P, now: float, *, urgent: bool, told: int = 1) -> None:
        """One more, at ``now`` seconds of any clock, when so many jobs are ``told`` what comes."""
        due, pieces = self._held.get(job, (inf, []))
        at_once, pause = urgent or not job.begun or not job.pause, max(job.pause, min(MOST, EACH * told))
        due = min(due, now if at_once else (now // pause + 1) * pause)
        self._held[job] = due, [*pieces, piece]
        job.begun = True

    def take(self, now: float) -> Sequence[tuple[T, list[P]]]:
        """What is due, in the order in which it came."""
        due = [job for job, (at, _) in self._held.items() if at <= now]
        return [(job, self._held.pop(job)[1]) for job in due]
