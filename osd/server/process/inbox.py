"""An inbox of one call: put one by one, taken together."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """An asynchronous inbox. Belongs to one event loop."""

    def __init__(self) -> None:
        self._things: list[T] = []
        self._ready = asyncio.Event()

    def put(self, thing: T) -> None:
        """Put a thing in."""
        self._things.append(thing)
        self._ready.set()

    async def take(self) -> list[T]:
        """Take everything that has come, waiting until there is something."""
        await self._ready.wait()
        self._ready.clear()
        things, self._things = self._things, []
        return things
