"""Checks that every request passes first (size, key, host), and the headers of every answer."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osd.server.errors import ApiError, BodyTooLarge, NotAllowed
from osd.server.http.keys import KeyRing
from osd.server.metrics.server import Meters
from storage.records import new_id
from storage.sql.audit import acting

SAFE = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
NO_KEY = "nobody (no key)"
"""Who acts, in the audit trail, where callers need no key."""
JSON = re.compile(r"application/([\w.-]+\+)?json")
"""Media types whose bodies are read as JSON."""
LOCAL = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")


class Guard:
    """ASGI middleware that checks requests. ``scopes`` maps beginnings of paths; other paths are open to all."""

    def __init__(self, app: ASGIApp, ring: KeyRing, meters: Meters, scopes: Mapping[str, str], *, limit: int) -> None:
        """Wrap an application; ``limit`` is the maximum body in bytes."""
        self.app, self.ring, self.meters = app, ring, meters
        self.scopes, self.limit = scopes, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, begun = Headers(scope=scope), time.perf_counter()
        given = headers.get("x-request-id", "")
        state = scope.setdefault("state", {})
        state["id"] = given if ID.fullmatch(given) else new_id()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(message, state)
            await send(message)

        try:
            self._check(scope, headers, state)
            with acting(*_actor(scope, state)):
                await self.app(scope, _bounded(receive, self.limit), answer)
        except ApiError as error:
            if status:
                raise
            await JSONResponse(error.body(), error.status, error.headers)(scope, receive, answer)
        finally:
            self.meters.answered(scope, status, 1000 * (time.perf_counter() - begun), state)

    def _check(self, scope: Scope, headers: Headers, state: dict[str, Any]) -> None:
        """Check host, key and content type. Raises ApiError.

        A POST must declare JSON, which a foreign web page cannot do without the browser asking first.
        """
        if not self.ring.needed and self.ring.local_only and not LOCAL.fullmatch(headers.get("host", "")):
            raise NotAllowed(reason="Without keys the server answers on this machine's own names only.")
        needed = next((name for path, name in self.scopes.items() if scope["path"].startswith(path)), None)
        if needed:
            state["caller"] = caller = self.ring.caller(headers.get("authorization"), needed)
            if needed == "infer" and scope["method"] == "POST":
                caller.let_in()
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:18]) > self.limit:
            raise BodyTooLarge(limit=self.limit)
        media = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and not JSON.fullmatch(media):
            raise ApiError(reason="Send `Content-Type: application/json`.", code="unsupported_media_type")


def _actor(scope: Scope, state: Mapping[str, Any]) -> tuple[str, str]:
    """Return where the caller acts from, and who it is."""
    caller, address = state.get("caller"), (scope.get("client") or ("",))[0]
    return f"http {address}".rstrip(), caller.key.id if caller and caller.key else NO_KEY


def _add_headers(message: Message, state: Mapping[str, Any]) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in SAFE.items():
        headers.setdefault(name, value)
    headers["X-Request-Id"] = state["id"]
    if caller := state.get("caller"):
        headers.update(caller.headers())


def _bounded(receive: Receive, limit: int) -> Receive:
    """Return a receiver that stops a body of undeclared length at the limit."""
    read = 0

    async def bounded() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > limit:
            raise HTTPException(BodyTooLarge.status, str(BodyTooLarge(limit=limit)))  # FastAPI lets this one through
        return message

    return bounded
