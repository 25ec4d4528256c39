"""The thread that decodes and what the process that answers HTTP has of it, both here."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from osd.engine.engine import Engine
from osd.server.core.client import EngineClient
from osd.server.core.engine_thread import EngineThread
from osd.server.core.ipc import Endpoint
from osd.server.core.messages import ClientJob, JobOutput
from storage.records import Request

PROMPT = (3, 5, 8)


@asynccontextmanager
async def decoding(
    engine: Engine, queue: int, failed: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[EngineClient, EngineThread]]:
    """Both, as long as the block runs."""
    here, there = socket.socketpair()
    thread, distant = (
        EngineThread(engine, queue, there),
        EngineClient(Endpoint(here, asyncio.get_running_loop())),
    )
    thread.failed = failed
    thread.start()
    following = asyncio.create_task(distant.follow())
    try:
        yield distant, thread
    finally:
        await asyncio.to_thread(thread.close)
        engine.listeners.clear()
        await following


def make_job(count: int = 20, tenant: str = "default", **fields: Any) -> tuple[ClientJob, asyncio.Queue[JobOutput]]:
    """A job, and where its pieces arrive."""
    inbox: asyncio.Queue[JobOutput] = asyncio.Queue()
    request = Request(PROMPT, max_new_tokens=count, tenant=tenant, ignore_eos=True)
    return ClientJob(request, inbox.put_nowait, **fields), inbox


async def ended(inbox: asyncio.Queue[JobOutput]) -> list[JobOutput]:
    """All pieces of a job."""
    pieces = [await inbox.get()]
    while not pieces[-1].last:
        pieces.append(await inbox.get())
    return pieces


async def answer(thread: EngineClient, count: int, **fields: Any) -> list[JobOutput]:
    """What one request brings."""
    job, inbox = make_job(count, **fields)
    thread.submit([job])
    return await ended(inbox)
