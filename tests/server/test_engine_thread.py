"""The decode thread over a real engine, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from osd.engine import Engine
from osd.server.engine_thread import EngineThread
from osd.server.errors import Busy, Draining, EngineFailed, Stopped
from osd.server.job import Job
from osd.server.piece import Piece
from storage.records import Request
from storage.settings import ServeSettings
from tests.osd.models import alone, random_pair

SETTINGS = ServeSettings(gamma="fixed", max_batch=2, max_length=128)
PROMPT = (3, 5, 8)
Body = Callable[[EngineThread], Awaitable[None]]


def run(body: Body, *, queue: int = 4) -> Engine:
    """A thread over random models, as long as the body runs."""
    engine = Engine(random_pair(), SETTINGS)

    async def serve() -> None:
        thread = EngineThread(engine, queue, lambda: None)
        thread.start()
        try:
            await asyncio.wait_for(body(thread), 60)
        finally:
            await asyncio.to_thread(thread.close)

    asyncio.run(serve())
    return engine


def job(count: int = 20, tenant: str = "default") -> tuple[Job, asyncio.Queue[Piece]]:
    """A job, and where its pieces arrive."""
    inbox: asyncio.Queue[Piece] = asyncio.Queue()
    return Job(Request(PROMPT, max_new_tokens=count, tenant=tenant), inbox.put_nowait), inbox


async def ended(inbox: asyncio.Queue[Piece]) -> list[Piece]:
    """All pieces of a job."""
    pieces = [await inbox.get()]
    while not (pieces[-1].last):
        pieces.append(await inbox.get())
    return pieces


def test_pieces_add_up_to_the_targets_text() -> None:
    async def body(thread: EngineThread) -> None:
        jobs = [job(20 + i) for i in range(4)]
        thread.submit([one for one, _ in jobs])
        wanted = alone(thread.engine.pair.target.module, PROMPT, 23)
        for i, (_, inbox) in enumerate(jobs):
            pieces = await ended(inbox)
            assert [token for piece in pieces for token in piece.tokens] == wanted[: 20 + i]
            assert all(piece.version and piece.route == "default" for piece in pieces)

    run(body)


def test_a_job_is_ended_in_the_engine_and_in_line() -> None:
    async def body(thread: EngineThread) -> None:
        jobs = [job(100) for _ in range(4)]
        thread.submit([one for one, _ in jobs])
        await jobs[0][1].get()
        for one, _ in jobs:
            thread.end(one, Stopped())
        for _, inbox in jobs:
            assert isinstance((await ended(inbox))[-1].error, Stopped)
        assert (thread.running, thread.waiting) == (0, 0)

    assert run(body).rows == []


def test_all_or_none_find_room_in_line() -> None:
    async def body(thread: EngineThread) -> None:
        with pytest.raises(Busy):
            thread.submit([job()[0] for _ in range(9)])
        assert thread.waiting == 0
        thread.draining = True
        with pytest.raises(Draining):
            thread.submit([job()[0]])

    run(body)


def test_when_decoding_breaks_everybody_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(thread: EngineThread) -> None:
        told = asyncio.Event()
        thread._failed = told.set
        jobs = [job(100) for _ in range(4)]
        thread.submit([one for one, _ in jobs])
        await jobs[0][1].get()
        monkeypatch.setattr(thread.engine, "step", lambda: 1 / 0)
        for _, inbox in jobs:
            assert isinstance((await ended(inbox))[-1].error, EngineFailed)
        await told.wait()
        await asyncio.to_thread(thread._thread.join)
        assert not thread.alive
        with pytest.raises(Draining):
            thread.submit([job()[0]])

    run(body)
    assert "decoding failed" in caplog.text
