"""ASGI application that passes requests on to another server, and its answers back as they come."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

import aiohttp
from yarl import URL

from osd.attached.vllm.middleware import Message, Receive, Send, whole_body

log = logging.getLogger(__name__)
HOP = frozenset((
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
))  # fmt: skip
"""Headers of one connection alone (RFC 9110, 7.6.1)."""
OURS = HOP | {b"host", b"content-length", b"accept-encoding"}
"""Headers of a request that are made anew; answers come unpacked, so that they can be read on their way."""
CONNECT = 10.0
"""Seconds until the server must have taken a connection; an answer may take as long as it likes."""
IDLE = 2.0
"""Seconds for which a connection waits for its next request: less than servers do (uvicorn: 5), for a request that is
sent while the server closes is lost."""


class Forwarder:
    """Passes everything on to one server. Its connections belong to the event loop of the first request."""

    def __init__(self, upstream: str) -> None:
        """``upstream``: the server's URL, without a path."""
        self.upstream = upstream.rstrip("/")
        self._client: aiohttp.ClientSession | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve a request; the server hears at once when the client has gone."""
        if scope["type"] != "http":
            return
        body, gone = await whole_body(receive)
        if gone:
            return
        passing = asyncio.ensure_future(self._pass(scope, body, send))
        leaving = asyncio.ensure_future(_departure(receive))
        try:
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (passing, leaving):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await passing  # raises what broke the answer off: the client's connection is then closed too

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def _pass(self, scope: MutableMapping[str, Any], body: bytes, send: Send) -> None:
        try:
            answer = await self._ask(scope, body)
        except (aiohttp.ClientError, OSError) as error:
            log.warning("%s does not answer: %s", self.upstream, error, extra={"action": "upstream_away"})
            await _say(send, 502, f"The model server does not answer ({type(error).__name__}). Try again later.")
            return
        async with answer:
            headers = [(name, value) for name, value in answer.raw_headers if name.lower() not in HOP]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ask(self, scope: MutableMapping[str, Any], body: bytes) -> aiohttp.ClientResponse:
        if self._client is None:
            limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT)
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE), timeout=limits, auto_decompress=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
                cookie_jar=aiohttp.DummyCookieJar(),
            )  # fmt: skip
        path = scope.get("raw_path") or scope["path"].encode()
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"] if k.lower() not in OURS]
        url = URL(self.upstream + (path + query).decode("latin-1"), encoded=True)
        return await self._client.request(
            scope["method"], url, headers=headers, data=body or None, allow_redirects=False
        )


async def _departure(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _say(send: Send, status: int, reason: str) -> None:
    """Answer with an error in OpenAI's shape."""
    error = {"message": reason, "type": "api_error", "param": None, "code": "upstream_unreachable"}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    start: Message = {"type": "http.response.start", "status": status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": False})
