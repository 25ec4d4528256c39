"""A client's connection, with a real server at the other end that sends what it is told in the pieces it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from osd.bench.serve.client import Address, Client, Connection, read_reply
from osd.bench.serve.requests import ServeJob

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"usage": {"completion_tokens": 6}}\n\n'
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
STREAM = HEAD + CHUNK + b"0\r\n\r\n"
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\nuntil it closes"


async def _ask(answers: Sequence[Sequence[bytes]], close: bool) -> list[bytes]:
    """Each answer as a client read it that asks for one after another; how many connections it took comes last."""
    left, accepted = list(answers), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        while left and await reader.read(1 << 16):
            for piece in left.pop(0):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)  # so that pieces stay pieces
            if close:
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port, found, connection = server.sockets[0].getsockname()[1], [], None
    for _ in answers:
        if connection is None or not connection.usable:
            _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
        times, data = await connection.exchange(b"please!")
        assert len(times) == len(data) and times == sorted(times)
        found.append(b"".join(data))
    if connection:
        connection.close()
    server.close()
    await asyncio.sleep(0.05)  # the other end sees it
    return [*found, b"%d" % accepted]


def test_streams_wherever_they_are_cut_and_refusals_follow_on_one_connection() -> None:
    cuts = [[STREAM[:i], STREAM[i:j], STREAM[j:]] for i, j in [(1, 20), (60, len(STREAM) - 6), (90, len(STREAM) - 1)]]
    answers = [[STREAM], [REFUSED], *cuts, [REFUSED[:30], REFUSED[30:]], [HEAD, CHUNK, b"0\r\n", b"\r\n"]]
    found = asyncio.run(asyncio.wait_for(_ask(answers, close=False), 20))
    assert found == [*map(b"".join, answers), b"1"]


def test_what_does_not_say_its_length_ends_with_the_connection() -> None:
    assert asyncio.run(asyncio.wait_for(_ask([[ENDLESS], [STREAM]], close=True), 20)) == [ENDLESS, STREAM, b"2"]


@pytest.mark.parametrize("answer", [STREAM, REFUSED], ids=["answered", "refused"])
def test_a_client_that_was_refused_asks_on_a_new_connection(answer: bytes) -> None:
    async def run() -> tuple[list[str | None], int]:
        accepted = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal accepted
            accepted += 1
            while not reader.at_eof() and await reader.read(1 << 16):
                writer.write(answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = Client(Address(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        errors = [read_reply(await client.collect(ServeJob((1, 2), 6))).error for _ in range(3)]
        client.close()
        server.close()
        await asyncio.sleep(0.05)
        return errors, accepted

    errors, accepted = asyncio.run(asyncio.wait_for(run(), 20))
    assert (accepted, errors) == ((1, [None] * 3) if answer is STREAM else (3, ["ValueError: status 429, {}"] * 3))
