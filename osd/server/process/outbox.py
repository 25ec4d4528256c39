"""Who is to be told what rounds brought, and when: every telling takes the process that answers HTTP, and its clients,
the same time whether it is of one token or of ten.

A job's first tokens, its last ones and an error go at once; what comes between waits for a tick, ``pause`` seconds of
the job apart, at which all jobs of that pause are told together. Where many are told, ticks are further apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

EACH, MOST = 0.005, 0.1
"""Seconds between ticks for each job that is told, and at most: eight are told every 40 ms, twenty and more ten times
a second."""


class OutboxReader(Protocol):
    """Somebody who is told in portions."""

    pause: float
    begun: bool


T = TypeVar("T", bound=OutboxReader)


class Outbox(Generic[T]):
    """Belongs to the thread that decodes."""

    def __init__(self) -> None:
        self._due: dict[T, float] = {}
        """When each job is to be told."""

    def __len__(self) -> int:
        return len(self._due)

    def put(self, job: T, now: float, *, urgent: bool = False, told: int = 1) -> None:
        """Something has come for it, at ``now`` seconds of any clock, when so many jobs are ``told`` what comes."""
        if urgent or not job.begun or not job.pause:
            self._due[job], job.begun = now, True
        elif job not in self._due:
            pause = max(job.pause, min(MOST, EACH * told))
            self._due[job] = (now // pause + 1) * pause

    def take(self, now: float) -> Sequence[T]:
        """Who is due, in the order in which they were put here."""
        due = [job for job, at in self._due.items() if at <= now]
        for job in due:
            del self._due[job]
        return due
