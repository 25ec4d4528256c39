"""The decode thread over a real engine, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from osd.engine.engine import Engine
from osd.server.core.client import EngineClient
from osd.server.core.engine_thread import EngineThread
from osd.server.errors import Busy, Draining, EngineFailed, ServerStopped
from tests.support.decoding import PROMPT, answer, decoding, ended, make_job
from tests.support.models import alone, random_pair
from tests.support.settings import settings_of

SETTINGS = settings_of(gamma__rule="fixed", serve__max_batch=2, serve__max_length=128)
Body = Callable[[EngineClient, EngineThread], Awaitable[None]]


def run(body: Body, *, queue: int = 4, failed: Callable[[], None] = lambda: None) -> Engine:
    """A thread over random models, as long as the body runs."""
    engine = Engine(random_pair(), SETTINGS)

    async def serve() -> None:
        async with decoding(engine, queue, failed) as (distant, thread):
            await asyncio.wait_for(body(distant, thread), 60)

    asyncio.run(serve())
    return engine


def test_pieces_add_up_to_the_targets_text() -> None:
    async def body(distant: EngineClient, thread: EngineThread) -> None:
        jobs = [make_job(20 + i) for i in range(4)]
        distant.submit([one for one, _ in jobs])
        wanted = alone(thread.engine.pair.target.module, PROMPT, 23)
        for i, (_, inbox) in enumerate(jobs):
            pieces = await ended(inbox)
            assert [token for piece in pieces for token in piece.tokens] == wanted[: 20 + i]
            assert all(piece.version and piece.route == "default" for piece in pieces)
        assert thread.finished == 4

    run(body)


@pytest.mark.parametrize("everybody", [False, True])
def test_a_job_is_ended_in_the_engine_and_in_line(everybody: bool) -> None:
    async def body(distant: EngineClient, thread: EngineThread) -> None:
        jobs = [make_job(100) for _ in range(4)]
        distant.submit([one for one, _ in jobs])
        await jobs[0][1].get()
        if everybody:
            thread.end_all()
        else:
            for one, _ in jobs:
                distant.end(one, ServerStopped())
        for _, inbox in jobs:
            assert isinstance((await ended(inbox))[-1].error, ServerStopped)
        assert (thread.running, thread.waiting) == (0, 0)

    assert run(body).rows == []


def test_all_or_none_find_room_in_line() -> None:
    async def body(distant: EngineClient, thread: EngineThread) -> None:
        jobs = [make_job() for _ in range(9)]
        distant.submit([one for one, _ in jobs])
        for _, inbox in jobs:
            assert isinstance((await ended(inbox))[-1].error, Busy)
        assert thread.waiting == 0
        thread.draining = True
        assert isinstance((await answer(distant, 2))[-1].error, Draining)

    run(body)


def test_the_newest_of_who_has_most_in_line_gives_way() -> None:
    async def body(distant: EngineClient, thread: EngineThread) -> None:
        many = [make_job(100, "many") for _ in range(6)]
        for one, _ in many:
            distant.submit([one])
        few, inbox = make_job(2, "few")
        distant.submit([few])
        assert isinstance((await ended(many[-1][1]))[-1].error, Busy)
        thread.end_all()
        await ended(inbox)

    run(body)


def test_when_decoding_breaks_everybody_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[bool] = []

    async def body(distant: EngineClient, thread: EngineThread) -> None:
        jobs = [make_job(100) for _ in range(4)]
        distant.submit([one for one, _ in jobs])
        await jobs[0][1].get()
        monkeypatch.setattr(thread.engine, "step", lambda: 1 / 0)
        for _, inbox in jobs:
            assert isinstance((await ended(inbox))[-1].error, EngineFailed)
        await asyncio.to_thread(thread._thread.join)
        assert not thread.alive
        with pytest.raises(EngineFailed):
            distant.submit([make_job()[0]])
        await asyncio.sleep(0)

    run(body, failed=lambda: told.append(True))
    assert told and "decoding failed" in caplog.text
