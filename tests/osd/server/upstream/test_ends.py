"""The end of the connection is not the end of the answer: a client gets the whole, or an error."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from osd.server.start import key_ring
from osd.server.upstream.app import make_upstream_app
from osd.server.upstream.call import OTHERS, READ_TEXT
from osd.server.upstream.host import UpstreamHost
from osd.server.upstream.replicas import FAILURES, Replica, ReplicaState
from osd.server.upstream.run import opened
from osd.server.upstream.watch import UpstreamWatch
from storage.settings import load_settings
from storage.store import open_store
from tests.osd.server.upstream.conftest import Fronted
from tests.support.fake_replica import DONE, HELLO, Answer, Asked, FakeReplica, chunk, head, replica, say, stream
from tests.support.waiting import PATIENCE

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
EVENTS = {
    TEXT: b'data: {"choices":[{"text":"a"}]}\n\ndata: {"usage":{}}\n\n' + DONE,
    CHAT: b'data: {"choices":[{"delta":{}}]}\r\n\r\n: ping\r\n\r\ndata: [DONE]\r\n\r\n',
}
WHOLE = {TEXT: b'{"choices":[{"text":"a}"}]}', CHAT: b'{"choices":[{"message":{}}]}'}
CUT = ("chunks cut", "reset", "too long")
"""Ways to close in which the connection itself shows that something is missing, whatever came before."""
WAYS = ("close", "chunks", "length", "too short", *CUT)


def said(kind: str, sent: bytes, whole: bytes, way: str) -> Answer:
    """Send a prefix of an answer, and end in one of the ways."""
    lengths = {"length": len(sent), "too short": len(sent), "too long": len(whole) + 9}
    chunked = way.startswith("chunks") or way == "reset"
    headers = {"content-type": kind, "connection": "close"}
    headers |= {"content-length": str(lengths[way])} if way in lengths else {}
    headers |= {"transfer-encoding": "chunked"} if chunked else {}

    async def answer(writer: asyncio.StreamWriter, asked: Asked) -> None:
        writer.write(head(200, headers))
        body = whole if way == "too short" else sent
        writer.write(b"%x\r\n%b\r\n" % (len(body), body) if chunked and body else body)
        writer.write(b"0\r\n\r\n" if way == "chunks" else b"")
        if way == "reset":
            await asyncio.sleep(0.0005 if len(sent) % 2 else 0)
            writer.transport.abort()
        else:
            await writer.drain()
            writer.close()

    return answer


@asynccontextmanager
async def front_here(folder: Path, *fakes: FakeReplica) -> AsyncIterator[tuple[UpstreamHost, httpx.AsyncClient]]:
    """A front in this process, so that what it counts can be read after each request."""
    settings = load_settings(storage={"directory": folder}, upstream={"replicas": [one.url for one in fakes]})
    with open_store(settings) as store:
        async with opened(settings, store, key_ring(store, settings, required=False), None) as host:
            await UpstreamWatch(host).look_at_replicas()
            transport = httpx.ASGITransport(make_upstream_app(host))
            async with httpx.AsyncClient(transport=transport, base_url="http://front", timeout=PATIENCE) as client:
                yield host, client
    await asyncio.sleep(0.01)  # closed connections end in the loop's next turns


@pytest.fixture(autouse=True)
def sockets_end_here() -> Iterator[None]:
    """A socket whose loop ended while its connection was being reset is collected here, not in a later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def fake() -> Iterator[FakeReplica]:
    """A replica."""
    with replica() as made:
        yield made


def error_of(answer: httpx.Response) -> str | None:
    """The code of the error that is the answer, or the end of the stream; None where there is none."""
    last = answer.content.replace(b"\r\n", b"\n").strip().split(b"\n\n")[-1].strip().removeprefix(b"data: ")
    try:
        body = json.loads(last)
    except ValueError:
        return None
    return str(body["error"]["code"]) if "error" in body else None


def up(one: Replica) -> int:
    """Have it get requests, whatever came before; return how many failures were counted."""
    one.found_well(one.models, own=False, ready=True)
    return sum(one.failed.values())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("streams", [True, False])
def test_every_prefix_of_an_answer_is_an_error(
    tmp_path: Path, fake: FakeReplica, streams: bool, path: str, way: str
) -> None:
    """All prefixes of a stream and of a whole answer, closed in seven ways; the whole itself too."""
    whole = (EVENTS if streams else WHOLE)[path]
    kind = "text/event-stream; charset=utf-8" if streams else "application/json"

    async def ask_all() -> None:
        async with front_here(tmp_path, fake) as (host, client):
            (one,) = host.pool.replicas.values()
            for size in range(len(whole) + 1):
                fake.answer, before = said(kind, whole[:size], whole, way), up(one)
                answer = await client.post(path, json={"prompt": "a", "messages": [], "stream": streams})
                is_whole = (answer.status_code, answer.content) == (200, whole)
                assert is_whole or error_of(answer) == "replica_failed", (size, answer.content)
                assert (sum(one.failed.values()) > before) != is_whole, "a failure is counted, and nothing else is one"
                assert is_whole == (size == len(whole)) or way in CUT

    asyncio.run(ask_all())


NO_ANSWERS = (
    b"", b"{not json", b"<html><body>Bad gateway</body></html>", b"[" * 100_000, b"\xff\xfe", b"null", b'"text"', b"5",
    b" ", b'{"choices": []}{"choices": []}', DONE,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["application/json", "text/html", "text/plain; charset=utf-8"])
def test_a_success_that_is_no_whole_json_is_an_error_on_every_route(
    tmp_path: Path, fake: FakeReplica, kind: str
) -> None:
    async def ask_all() -> None:
        async with front_here(tmp_path, fake) as (host, client):
            (one,) = host.pool.replicas.values()
            for path in (*READ_TEXT, *OTHERS):
                for body in NO_ANSWERS:
                    fake.answer, before = say(200, body, content_type=kind), up(one)
                    answer = await client.post(path, json={"prompt": "a"})
                    assert (answer.status_code, error_of(answer)) == (502, "replica_failed"), (path, body)
                    assert sum(one.failed.values()) > before
                up(one)
                fake.answer = say(200, b"\x00\x01", content_type="application/octet-stream")
                assert (await client.post(path, json={"prompt": "a"})).content == b"\x00\x01", "embeddings as bytes"

    asyncio.run(ask_all())


ENDED = {
    "/v1/messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "/v1/responses": b'event: response.completed\ndata: {"type":"response.completed","response":{"x":"%b"}}\n\n'
    % (b"y" * 40_000),
    TEXT: b'data: {"error":{"message":"out of memory"}}\n\n',
    CHAT: b'data: {"error":{"message":"out of memory"}}\n\n' + DONE,
}


def test_each_route_ends_its_streams_in_its_own_way(tmp_path: Path, fake: FakeReplica) -> None:
    async def ask_all() -> None:
        async with front_here(tmp_path, fake) as (host, client):
            (one,) = host.pool.replicas.values()
            for path, end in ENDED.items():
                fake.answer = say(200, chunk(0) + end, content_type="text/event-stream")
                answer = await client.post(path, json={"prompt": "a", "stream": True})
                assert answer.content == chunk(0) + end and not one.failed
            for path in ENDED:
                fake.answer = say(200, chunk(0), content_type="text/event-stream")
                answer = await client.post(path, json={"prompt": "a", "stream": True})
                assert answer.content.startswith(chunk(0)) and error_of(answer) == "replica_failed"
                up(one)

    asyncio.run(ask_all())


def test_streams_that_break_off_take_a_replica_out_and_whole_ones_do_not_leave_it_doubted(
    tmp_path: Path, fake: FakeReplica
) -> None:
    async def ask(client: httpx.AsyncClient, answer: Answer) -> None:
        fake.answer = answer
        await client.post(TEXT, json={"prompt": "a", "stream": True})

    async def ask_all() -> None:
        async with front_here(tmp_path, fake) as (host, client):
            (one,) = host.pool.replicas.values()
            cut = said("text/event-stream", chunk(0), b"", "chunks")
            for answer in [*[cut] * (FAILURES - 1), stream(2), *[cut] * (FAILURES - 1)]:
                await ask(client, answer)
            assert one.state is ReplicaState.UP
            await ask(client, cut)
            assert one.state is ReplicaState.DOWN and "broke off a stream" in str(one.trouble)

    asyncio.run(ask_all())


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b""),
        ("application/json", b"{not json"),
        ("text/html", b"<html>"),
        ("text/event-stream", b""),
    ],
)
def test_what_is_no_answer_is_asked_elsewhere_before_the_first_byte(
    tmp_path: Path, fake: FakeReplica, kind: str, body: bytes
) -> None:
    async def ask_all() -> None:
        with replica() as good:
            fake.answer, good.answer = say(200, body, content_type=kind), HELLO
            async with front_here(tmp_path, fake, good) as (_, client):
                answers = [await client.post(TEXT, json={"prompt": "a"}) for _ in range(2)]
                assert [answer.json()["choices"][0]["text"] for answer in answers] == ["hello"] * 2
                assert len(fake.asked) > 0 and len(good.asked) == 2

    asyncio.run(ask_all())


def test_the_official_client_hears_of_it(one: Fronted) -> None:
    client = one.server.client()
    asked: dict[str, Any] = {"model": "target", "prompt": "a"}
    one.replicas[0].answer = said("text/event-stream", chunk(0) + chunk(1), b"", "close")
    with pytest.raises(openai.APIError, match="did not finish"):
        list(client.completions.create(**asked, stream=True))
    one.replicas[0].answer = say(200, b"<html></html>", content_type="text/html")
    with pytest.raises(openai.InternalServerError, match="did not finish"):
        client.completions.create(**asked)
