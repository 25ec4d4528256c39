"""What rounds brought, until it is worth telling the event loop: every time that wakes, it takes the interpreter from
the thread that decodes.

A job's first piece, its last one and an error go at once; what comes between waits for a tick, ``pause`` seconds of
the job apart, at which all jobs of that pause are told together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


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
        self._due: dict[T, float] = {}

    def __len__(self) -> int:
        return len(self._held)

    def put(self, job: T, piece: P, now: float, *, urgent: bool) -> None:
        """One more, at ``now`` seconds of any clock."""
        self._held.setdefault(job, []).append(piece)
        if urgent or not job.begun or not job.pause:
            self._due[job] = now
        elif job not in self._due:
            self._due[job] = (now // job.pause + 1) * job.pause
        job.begun = True

    def take(self, now: float) -> Sequence[tuple[T, list[P]]]:
        """What is due, in the order in which it came."""
        due = [job for job, at in self._due.items() if at <= now]
        for job in due:
            del self._due[job]
        return [(job, self._held.pop(job)) for job in due]
