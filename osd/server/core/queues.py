"""The two queues of the engine process: requests that wait for a row, and tokens that wait to be sent."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from osd.server.core.messages import EngineJob

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue of at most ``limit`` things in which tenants take turns, however much each has waiting. Not
    thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        """Queue of each tenant, the one whose turn it is first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, tenant: str, *things: T) -> Sequence[T] | None:
        """Add things, all or none; return those that a full queue drops for them. None where not all have room, with
        nothing changed.

        Dropped are the newest of the tenant who has most waiting, as long as that is another who has more.
        """
        dropped: list[tuple[str, T]] = []
        for number, thing in enumerate(things):
            if self._count >= self.limit:
                most = max(self._waiting, key=lambda name: len(self._waiting[name]))
                if len(self._waiting[most]) <= self.of(tenant) + 1:
                    for added in things[:number]:
                        self.remove(tenant, added)
                    for name, one in reversed(dropped):
                        self._append(name, one)
                    return None
                dropped.append((most, self._waiting[most].pop()))
                self._count -= 1
            self._append(tenant, thing)
        return [one for _, one in dropped]

    def _append(self, tenant: str, thing: T) -> None:
        self._waiting.setdefault(tenant, deque()).append(thing)
        self._count += 1

    def of(self, tenant: str) -> int:
        """Return how many of the tenant's wait."""
        return len(self._waiting.get(tenant, ()))

    def take(self) -> T | None:
        """Take the first of the tenant whose turn it is; None if there is none."""
        if not self._count:
            return None
        tenant, queue = self._waiting.popitem(last=False)
        thing = queue.popleft()
        self._count -= 1
        if queue:
            self._waiting[tenant] = queue
        return thing

    def remove(self, tenant: str, thing: T) -> bool:
        """Remove a thing; False if it is not there."""
        queue = self._waiting.get(tenant, deque())
        if thing not in queue:
            return False
        queue.remove(thing)
        self._count -= 1
        if not queue:
            del self._waiting[tenant]
        return True


EACH, MOST = 0.005, 0.1
"""Seconds between ticks for each receiving job, and at most: every 40 ms for eight, ten times a second from twenty
on."""


class Outbox:
    """The schedule of messages on new tokens: one costs the API server and its clients the same for one token as for
    ten.

    A job's first tokens, its last ones and an error are sent at once; what comes between waits for a tick, ``pause``
    seconds apart, at which all jobs of that pause are sent together. With many jobs, ticks are further apart. Belongs
    to the thread that decodes.
    """

    def __init__(self) -> None:
        self._due: dict[EngineJob, float] = {}
        """Job -> time at which it is due."""

    def __len__(self) -> int:
        return len(self._due)

    def put(self, job: EngineJob, now: float, *, urgent: bool = False, receivers: int = 1) -> None:
        """Schedule a job that has something new at ``now`` (seconds of any clock), when so many jobs receive."""
        if urgent or not job.begun or not job.pause:
            self._due[job], job.begun = now, True
        elif job not in self._due:
            pause = max(job.pause, min(MOST, EACH * receivers))
            self._due[job] = (now // pause + 1) * pause

    def take(self, now: float) -> Sequence[EngineJob]:
        """Return the jobs that are due, in the order in which they were put."""
        due = [job for job, at in self._due.items() if at <= now]
        for job in due:
            del self._due[job]
        return due
