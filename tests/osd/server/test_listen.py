"""Connections of the ports that a server listens on."""

from __future__ import annotations

import asyncio
import socket

import pytest

from osd.server.process.listen import listen


@pytest.mark.parametrize("handed_on", [False, True])
def test_a_streams_first_token_does_not_wait_for_the_client_to_confirm_the_answers_head(handed_on: bool) -> None:
    """Also where another process opens the port by its number, as servers behind one port do."""
    bound = listen("127.0.0.1", 0, "server.port")
    port = socket.socket(fileno=bound.detach()) if handed_on else bound

    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken = writer.get_extra_info("socket")
            found.set_result(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(connected, sock=port):
            _, writer = await asyncio.open_connection(*port.getsockname())
            value = await found
            writer.close()
            return value

    assert asyncio.run(option()) == 1
