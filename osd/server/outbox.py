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
        self._held: dict[T, list[P]] = {}
        """What each job is to be told."""
        self._due: dict[T, float] = {}
        """And when."""
        self._next = inf
        """When somebody is to be told."""

    def __len__(self) -> int:
        return len(self._held)

    def put(self, job: T, piece: P, now: float, *, urgent: bool, told: int = 1) -> None:
        """One more, at ``now`` seconds of any clock, when so many jobs are ``told`` what comes."""
        waiting = self._held.get(job)
        if waiting is None:
            self._held[job] = [piece]
        else:
            waiting.append(piece)
            if not urgent:
                return  # it has its tick
        if urgent or not job.begun or not job.pause:
            due = now
        else:
            pause = max(job.pause, min(MOST, EACH * told))
            due = (now // pause + 1) * pause
        job.begun = True
        self._due[job] = due
        self._next = min(self._next, due)

    def take(self, now: float) -> Sequence[tuple[T, list[P]]]:
        """What is due, in the order in which it came."""
        if now < self._next:
            return []
        due = [job for job in self._held if self._due[job] <= now]
        taken = [(job, self._held.pop(job)) for job in due]
        for job in due:
            del self._due[job]
        self._next = min(self._due.values(), default=inf)
        return taken
