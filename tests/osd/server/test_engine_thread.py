"""The decode thread over a real engine, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from osd.engine.engine import Engine
from osd.server.core.client import EngineClient
from osd.server.core.engine_thread import EngineThread
from osd.server.core.messages import ClientJob, JobOutput
from osd.server.errors import Busy, DeadlineExceeded, Draining, EngineFailed, ServerStopped
from storage.records import Request
from tests.support.decoding import PROMPT, answer, decoding, ended, make_job
from tests.support.models import alone, random_pair
from tests.support.settings import settings_of

Body = Callable[[EngineClient, EngineThread], Awaitable[None]]


def run(body: Body, *, rows: int = 2, failed: Callable[[], None] = lambda: None) -> Engine:
    """A thread over random models, as long as the body runs; four requests may wait."""
    engine = Engine(random_pair(), settings_of(gamma__rule="fixed", serve__max_batch=rows, serve__max_length=512))

    async def serve() -> None:
        async with decoding(engine, 4, failed) as (distant, thread):
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


def test_log_probabilities_come_where_they_were_asked_for() -> None:
    async def body(distant: EngineClient, thread: EngineThread) -> None:
        wanted = alone(thread.engine.pair.target.module, PROMPT, 24)
        answers = await asyncio.gather(*(answer(distant, 20 + i, top=i or None, pause=60.0) for i in range(4)))
        for i, pieces in enumerate(answers):
            assert [token for piece in pieces for token in piece.tokens] == wanted[: 20 + i]
            assert pieces[-1].finish_reason == "length"
        for piece in answers[2]:
            assert piece.scores and len(piece.scores.chosen) == len(piece.tokens) == len(piece.scores.top)
            assert [ids[0] for ids in piece.scores.top_ids] == list(piece.tokens), "greedy: the likeliest"
        assert not any(piece.scores for piece in answers[0])
        assert len(answers[0]) == 2, "what the first round brought, and a minute's rest together"

    run(body, rows=1)


def test_who_finds_no_room_or_is_late_is_told_so_and_who_goes_leaves_nothing_behind() -> None:
    async def body(distant: EngineClient, thread: EngineThread) -> None:
        (running, _), (late, late_inbox) = make_job(400), make_job(400)
        distant.submit([running])
        distant.submit([late])
        while thread.running == 0:
            await asyncio.sleep(0.001)
        crowd = [make_job(2) for _ in range(5)]
        distant.submit([one for one, _ in crowd])
        for _, inbox in crowd:
            assert isinstance((await inbox.get()).error, Busy)
        distant.end(late, DeadlineExceeded())
        assert isinstance((await late_inbox.get()).error, DeadlineExceeded)
        distant.end(running)
        assert (await answer(distant, 2))[-1].finish_reason
        assert thread.running == 0 and not distant._jobs

    run(body, rows=1)


def test_what_came_before_a_deadline_is_still_shown() -> None:
    async def body(distant: EngineClient, thread: EngineThread) -> None:
        job, inbox = make_job(400, pause=60.0)
        distant.submit([job])
        first = await inbox.get()
        row = next(iter(thread._jobs.values())).row
        while not row or len(row.output) == len(first.tokens):
            await asyncio.sleep(0.001)
        distant.end(job, DeadlineExceeded())
        [held, last] = await ended(inbox)
        assert first.tokens and held.tokens and not held.last and isinstance(last.error, DeadlineExceeded)

    run(body, rows=1)


def test_when_http_goes_nobody_decodes_for_it() -> None:
    async def body(distant: EngineClient, thread: EngineThread) -> None:
        told: list[JobOutput] = []
        distant.submit([ClientJob(Request(PROMPT, max_new_tokens=400), told.append) for _ in range(3)])
        while thread.running == 0:
            await asyncio.sleep(0.001)
        distant._endpoint.close()
        while thread.running or thread.waiting or distant.alive:
            await asyncio.sleep(0.001)
        assert len([piece for piece in told if isinstance(piece.error, EngineFailed)]) == 3
        with pytest.raises(EngineFailed):
            distant.submit([])

    run(body, rows=1)
