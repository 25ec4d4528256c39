"""What comes for one call, in portions: every chunk of a stream costs the time of the cores that decode."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Things that come one by one and are taken together, at ticks ``pause`` seconds apart that all inboxes share: the
    event loop then wakes once for all streams, and decoding is disturbed once. Belongs to one event loop."""

    def __init__(self, pause: float) -> None:
        self.pause = pause
        self._loop = asyncio.get_running_loop()
        self._things: list[T] = []
        self._ready = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._begun = False

    def put(self, thing: T, *, urgent: bool) -> None:
        """One more: taken at once where it is urgent or the first of all, else at the next tick."""
        self._things.append(thing)
        if urgent or not self._begun or not self.pause:
            self._ready.set()
        elif self._timer is None:
            tick = (self._loop.time() // self.pause + 1) * self.pause
            self._timer = self._loop.call_at(tick, self._ready.set)

    async def take(self) -> list[T]:
        """Everything that has come, once it is time."""
        await self._ready.wait()
        self._ready.clear()
        if self._timer:
            self._timer.cancel()
        self._timer, self._begun = None, True
        things, self._things = self._things, []
        return things
