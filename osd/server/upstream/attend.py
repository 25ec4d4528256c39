"""Looking after a call while it is answered: the client may go, its key may end, its time may be up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Receive

from osd.server.errors import ApiError, DeadlineExceeded


async def attend(
    work: Coroutine[Any, Any, None], receive: Receive, why_end: Callable[[], ApiError | None], every: float,
    seconds: float | None,
) -> None:  # fmt: skip
    """Let a coroutine run until it has ended, the client has gone, ``why_end`` gives a reason (asked ``every`` so many
    seconds), or ``seconds`` are over; then it is cancelled. Raises what it raises, the reason, DeadlineExceeded."""
    loop = asyncio.get_running_loop()
    end = None if seconds is None else loop.time() + seconds
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        while True:
            left = every if end is None else max(0.0, min(every, end - loop.time()))
            done, _ = await asyncio.wait((task, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            if done:
                return None
            if why := why_end():
                raise why
            if end is not None and loop.time() >= end:
                raise DeadlineExceeded()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
