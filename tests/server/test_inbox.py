"""The inbox of a call: what waits for a tick, and what does not."""

from __future__ import annotations

import asyncio

from osd.server.inbox import Inbox

LONG = 3600.0
PATIENCE = 60.0


def run(scene: object) -> None:
    """A scene on a loop; fails instead of waiting for ever."""
    asyncio.run(asyncio.wait_for(scene, PATIENCE))  # type: ignore[arg-type]


def test_the_first_comes_at_once_and_the_next_wait_for_each_other() -> None:
    async def scene() -> None:
        inbox: Inbox[int] = Inbox(LONG)
        inbox.put(1, urgent=False)
        assert await inbox.take() == [1]
        taking = asyncio.create_task(inbox.take())
        for number in (2, 3):
            inbox.put(number, urgent=False)
            await asyncio.sleep(0.01)
            assert not taking.done()
        inbox.put(4, urgent=True)
        assert await taking == [2, 3, 4]

    run(scene())


def test_what_waits_comes_at_the_next_tick() -> None:
    async def scene() -> None:
        inbox: Inbox[int] = Inbox(0.05)
        for numbers in ([1], [2, 3], [4, 5]):
            for number in numbers:
                inbox.put(number, urgent=False)
            assert await inbox.take() == numbers

    run(scene())


def test_nothing_is_held_without_a_pause_and_nothing_comes_twice() -> None:
    async def scene() -> None:
        inbox: Inbox[int] = Inbox(0.0)
        got: list[int] = []

        async def reader() -> None:
            while len(got) < 100:
                some = await inbox.take()
                assert some, "it was woken for nothing"
                got.extend(some)

        reading = asyncio.create_task(reader())
        for number in range(100):
            inbox.put(number, urgent=number % 7 == 0)
            if number % 3 == 0:
                await asyncio.sleep(0)
        await reading
        assert got == list(range(100))

    run(scene())
