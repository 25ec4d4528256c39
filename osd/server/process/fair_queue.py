"""A fair queue: tenants take turns, however much each of them has waiting."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A fair queue of at most ``limit`` things. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        """Queue of each tenant, the one whose turn it is first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, tenant: str, thing: T) -> T | None:
        """Add a thing; return the one that a full queue drops for it, None while there is room.

        That is the newest of the tenant who has most waiting, or the added one itself.
        """
        out = None
        if self._count >= self.limit:
            most = max(self._waiting, key=lambda name: len(self._waiting[name]))
            if len(self._waiting[most]) <= self.of(tenant) + 1:
                return thing
            out = self._waiting[most].pop()
            self._count -= 1
        self._waiting.setdefault(tenant, deque()).append(thing)
        self._count += 1
        return out

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
