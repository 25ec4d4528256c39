"""Passing requests on to other servers, and their answers back as they come: connections are kept, nothing is buffered,
unpacked or followed elsewhere. The proxy before a vLLM passes everything on by it, the proxy over replicas what it has
chosen (``osd/server/upstream``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

import aiohttp
from yarl import URL

from osd.attached.vllm.plugin.osd_vllm.harvest import Receive, Send, whole_body

log = logging.getLogger(__name__)
HOP_BY_HOP = frozenset((
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
    "upgrade",
))  # fmt: skip
"""Headers of one connection alone (RFC 9110, 7.6.1)."""
MADE_ANEW = HOP_BY_HOP | {"host", "content-length", "accept-encoding"}
"""Headers of a request that its forwarder says itself; answers come unpacked, so that they can be read on their way."""
CONNECT_SECONDS = 10.0
"""Until the server must have taken a connection; an answer may take as long as it likes."""
KEEP_SECONDS = 2.0
"""How long a connection waits for its next request: less than servers do (vLLM and uvicorn: 5), for a request that is
sent while the server closes is lost."""
SILENT_SECONDS = 10
"""Seconds of silence after which a connection is probed, and between probes: a machine that has gone is noticed while
its answer is awaited, however long answers may take."""
PROBES = 3


def forwarding_client(connect_seconds: float = CONNECT_SECONDS) -> aiohttp.ClientSession:
    """Make the client. Belongs to the running event loop; close it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_SECONDS, socket_factory=_probed_socket),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
        headers={"Accept-Encoding": "identity"},
        skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _probed_socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    """Return a socket whose other end is probed while it is silent."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", SILENT_SECONDS), ("TCP_KEEPINTVL", SILENT_SECONDS), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, name):  # macOS names the first otherwise
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


async def while_client_waits(
    work: Coroutine[Any, Any, None], receive: Receive, check: Callable[[], None], every: float | None = None
) -> None:
    """Let a coroutine run until it has ended, or the client has gone; then it is cancelled. ``check`` is called every
    so many seconds, and ends it by what it raises. Raises what the coroutine raises."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        while True:
            done, _ = await asyncio.wait((task, gone), timeout=every, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            if done:
                return None
            check()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Forwarder:
    """ASGI application that passes all HTTP on to one server. Its connections live as long as the application."""

    def __init__(self, upstream: str) -> None:
        """``upstream``: the server's URL, without a path."""
        self.upstream = upstream.rstrip("/")
        self._client: aiohttp.ClientSession

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve the application's life, or a request; the server hears at once when the client has gone."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        body, gone = await whole_body(receive)
        if not gone:
            await while_client_waits(self._pass(scope, body, send), receive, lambda: None)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with forwarding_client() as self._client:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _pass(self, scope: MutableMapping[str, Any], body: bytes, send: Send) -> None:
        """Raises what breaks the answer off: the client's connection is then closed too."""
        try:
            answer = await self._ask(scope, body)
        except (aiohttp.ClientError, OSError) as error:
            log.warning("%s does not answer: %s", self.upstream, error, extra={"action": "upstream_away"})
            await _refuse(send, f"The model server does not answer ({type(error).__name__}). Try again later.")
            return
        async with answer:
            headers = [(k, v) for k, v in answer.raw_headers if k.lower().decode("latin-1") not in HOP_BY_HOP]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ask(self, scope: MutableMapping[str, Any], body: bytes) -> aiohttp.ClientResponse:
        path = scope.get("raw_path") or scope["path"].encode()
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = [(name, value) for name, value in named if name.lower() not in MADE_ANEW]
        url = URL(self.upstream + (path + query).decode("latin-1"), encoded=True)
        return await self._client.request(
            scope["method"], url, headers=headers, data=body or None, allow_redirects=False
        )


async def _refuse(send: Send, reason: str) -> None:
    """Answer 502 with an error in OpenAI's shape."""
    error = {"message": reason, "type": "api_error", "param": None, "code": "upstream_unreachable"}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 502, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
