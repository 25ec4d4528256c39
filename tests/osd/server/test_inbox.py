"""The inbox of a call: everything once, in order, and woken for nothing never."""

from __future__ import annotations

import asyncio

from osd.server.core.client import Inbox

PATIENCE = 60.0


def test_what_came_is_taken_together_and_nothing_comes_twice() -> None:
    async def scene() -> None:
        inbox: Inbox[int] = Inbox()
        got: list[int] = []

        async def reader() -> None:
            while len(got) < 100:
                some = await inbox.take()
                assert some, "it was woken for nothing"
                got.extend(some)

        reading = asyncio.create_task(reader())
        for number in range(100):
            inbox.put(number)
            if number % 3 == 0:
                await asyncio.sleep(0)
        await reading
        assert got == list(range(100))

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))
