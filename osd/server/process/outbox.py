"""Scheduling of messages on new tokens: one costs the HTTP process and its clients the same for one token as for ten.

A job's first tokens, its last ones and an error are sent at once; what comes between waits for a tick, ``pause``
seconds apart, at which all jobs of that pause are sent together. With many jobs, ticks are further apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

EACH, MOST = 0.005, 0.1
"""Seconds between ticks for each receiving job, and at most: every 40 ms for eight, ten times a second from twenty
on."""


class OutboxReader(Protocol):
    """A receiver of tokens in portions."""

    pause: float
    begun: bool


T = TypeVar("T", bound=OutboxReader)


class Outbox(Generic[T]):
    """The schedule of messages. Belongs to the thread that decodes."""

    def __init__(self) -> None:
        self._due: dict[T, float] = {}
        """Job -> time at which it is due."""

    def __len__(self) -> int:
        return len(self._due)

    def put(self, job: T, now: float, *, urgent: bool = False, told: int = 1) -> None:
        """Schedule a job that has something new at ``now`` (seconds of any clock), when ``told`` jobs receive."""
        if urgent or not job.begun or not job.pause:
            self._due[job], job.begun = now, True
        elif job not in self._due:
            pause = max(job.pause, min(MOST, EACH * told))
            self._due[job] = (now // pause + 1) * pause

    def take(self, now: float) -> Sequence[T]:
        """Return the jobs that are due, in the order in which they were put."""
        due = [job for job, at in self._due.items() if at <= now]
        for job in due:
            del self._due[job]
        return due
