"""Decoding and HTTP in two processes: what they say to each other, and what happens when one of them goes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from osd.logits import Scores
from osd.server import errors
from osd.server.core.ipc import Endpoint
from osd.server.core.messages import (
    ERRORS,
    JobOutput,
    api_error,
    engine_job,
    job_output,
    pack_message,
    unpack_messages,
)
from osd.server.errors import ApiError, Busy, DeadlineExceeded, EngineFailed, other
from osd.server.metrics.exposition import added
from osd.server.process.api_server import ControlLink
from storage.errors import UnknownRoute, UnknownVersion
from storage.records import Request
from storage.sampling import Sampling
from tests.osd.server.conftest import Server, serving
from tests.support.waiting import PATIENCE, until

LONG = {"prompt": "def add(a, b):", "max_tokens": 1800, "ignore_eos": True, "temperature": 0, "stream": True}


def over(*what: Any) -> list[Any]:
    """What arrives at the other side."""
    [[kind, *found]] = unpack_messages(bytearray(pack_message("kind", what)))
    assert kind == "kind"
    return found


def test_jobs_and_outputs_come_back_as_they_were() -> None:
    request = Request(
        (1, 2, 3), max_new_tokens=7, sampling=Sampling(0.5, 3, 0.9, 1 << 63), stop=("a", "ä\n"), ignore_eos=True,
        route="r", tenant="t", learn=False, text="x", language="fi", gamma=2,
        prompt_logprobs=3,
    )  # fmt: skip
    job = engine_job(over(request, 0.25, 4))
    assert (job.request, job.pause, job.top) == (request, 0.25, 4)
    for output in [
        JobOutput((4, 5), Scores([-0.5, -1.0], [[4], [5]], [[-0.5], [-float("inf")]], [1, 7]), "v", "r"),
        JobOutput((4,), None, "v", "r", "stop", ((2, 1), (0, 0))),
        JobOutput(finish_reason="cancelled"),
        JobOutput(finish_reason="length", prompt=Scores([-0.5], [[]], [[]], [9])),
    ]:
        assert job_output(*over(output)) == output


@pytest.mark.parametrize("error", [
    Busy(reason="full", code="queue_full", retry_after=1), DeadlineExceeded(), EngineFailed(),
    errors.as_api_error(UnknownRoute(route="x", known="y")), other(UnknownVersion(version="v")),
])  # fmt: skip
def test_an_error_answers_the_same_on_the_other_side(error: ApiError) -> None:
    made = api_error(*over(error))
    assert made is not None and type(made) is type(error)
    assert (made.body(), made.status, made.headers) == (error.body(), error.status, error.headers)
    assert type(error).__name__ in ERRORS and api_error(*over(None)) is None


def ends(body: Callable[[ControlLink, ControlLink], Awaitable[None]]) -> None:
    """Both ends in one event loop."""

    async def run() -> None:
        here, there = map(ControlLink, socket.socketpair())
        await asyncio.wait_for(body(here, there), 60)

    asyncio.run(run())


def test_messages_arrive_whole_and_in_order_and_questions_are_answered() -> None:
    heard: list[tuple[str, list[Any]]] = []

    async def body(here: ControlLink, there: ControlLink) -> None:
        def heed(kind: str) -> Callable[..., None]:
            return lambda *what: heard.append((kind, list(what)))

        async def twice(text: str) -> str:
            heard.append(("question", [text]))
            return text * 2

        async def never() -> None:
            await asyncio.Event().wait()

        heeds: dict[str, Callable[..., Any]] = {kind: heed(kind) for kind in ("one", "large", "half")} | {
            "question": twice,
            "nothing": never,
        }
        hearing = [asyncio.create_task(end.listen(heeds)) for end in (here, there)]
        here.say("one", 1)
        here.say("large", "x" * 5_000_000)
        here.say("half", "\ud83d")
        assert await asyncio.gather(here.ask("question", "ä"), here.ask("question", "b")) == ["ää", "bb"]
        assert [kind for kind, _ in heard] == ["one", "large", "half", "question", "question"]
        assert len(heard[1][1][0]) == 5_000_000 and heard[2][1] == ["\ud83d"]
        asked = asyncio.create_task(here.ask("nothing"))
        await asyncio.sleep(0)
        there.close()
        with pytest.raises(ConnectionError):
            await asked
        await asyncio.gather(*hearing)
        here.say("too late")  # nobody hears it, and nothing breaks

    ends(body)


def test_a_thread_speaks_with_an_event_loop_and_waits_for_nobody() -> None:
    here, there = socket.socketpair()
    thread, heard = Endpoint(there), []

    async def body() -> None:
        looped = Endpoint(here, asyncio.get_running_loop())
        heeds = {kind: lambda *what: heard.append(what) for kind in ("first", "second")}
        listening = asyncio.create_task(looped.listen(heeds))
        assert thread.take() == []
        large = "ä" * 3_000_000
        thread.say("first", large, "\ud83d")  # more than a socket holds
        thread.send()
        thread.say("second", 2)
        looped.say("one", 1, large)
        looped.say("two")
        got: list[list[Any]] = []
        while len(heard) < 2 or len(got) < 2:
            await asyncio.to_thread(thread.wait, 1.0)
            thread.send()
            got += thread.take()
        assert heard == [(large, "\ud83d"), (2,)]
        assert got == [["one", 1, large], ["two"]]
        looped.close()
        await listening
        await asyncio.to_thread(thread.wait, 0.01)
        assert thread.take() == [] and not thread.open
        for end in (thread, looped):
            end.say("too late")
            end.send()

    asyncio.run(asyncio.wait_for(body(), 60))
    thread.close()


def test_what_two_processes_count_is_added_up() -> None:
    one = (
        "# TYPE osd_http_requests_total counter\n"
        'osd_http_requests_total{path="/metrics"} 2.0\nosd_http_requests_total{path="/v1"} 5.0\n'
        '# TYPE osd_http_requests_created gauge\nosd_http_requests_created{path="/metrics"} 70.0\n'
    )
    other_one = (
        '# TYPE osd_http_requests_total counter\nosd_http_requests_total{path="/metrics"} 3.0\n'
        '# TYPE osd_http_requests_created gauge\nosd_http_requests_created{path="/metrics"} 60.0\n'
        "# TYPE osd_alone gauge\nosd_alone 1.0\n"
    )
    lines = added([one.encode(), other_one.encode()]).decode().splitlines()
    assert 'osd_http_requests_total{path="/metrics"} 5.0' in lines and "osd_alone 1.0" in lines
    assert 'osd_http_requests_total{path="/v1"} 5.0' in lines
    assert 'osd_http_requests_created{path="/metrics"} 60.0' in lines


def api_server_of(server: Server) -> psutil.Process:
    """The API server process; beside it there may be one that compiles."""
    [found] = [child for child in psutil.Process(server.process.pid).children() if "-c" not in child.cmdline()]
    return found


@contextmanager
def stream_of(server: Server) -> Iterator[Iterator[str]]:
    """The lines of an answer that has begun."""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=LONG, timeout=PATIENCE) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        yield lines


def test_when_decoding_is_killed_whoever_waits_is_told_and_nothing_stays_behind(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        api_server = api_server_of(server)
        with stream_of(server) as lines:
            os.kill(server.process.pid, signal.SIGKILL)
            rest = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert rest[-1]["error"]["code"] == "engine_failed"
        gone = lambda: not api_server.is_running() or api_server.status() == psutil.STATUS_ZOMBIE  # noqa: E731
        until(gone, "its other process ends")
        with pytest.raises(httpx.TransportError):
            server.get("/health")


def test_when_http_is_killed_the_server_ends_and_says_so(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        api_server = api_server_of(server)
        with stream_of(server) as lines:
            api_server.kill()
            with pytest.raises(httpx.TransportError):
                list(lines)
        assert server.process.wait(PATIENCE) == 1
        assert "the API server process has ended" in server.log
