"""ASGI middleware that harvests answers: vLLM is asked for more, the client gets exactly what it asked for.

Inside vLLM it is ``--middleware osd_vllm.harvest.Harvest``; in front of it, `osd attach --proxy` wraps it around a
forwarder. An :class:`Exchange` parts what is ours from what is the client's, and the :class:`Sender` hands it to the
collector. Whatever fails in here costs the harvest of one answer and never the answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from .exchange import PATHS, Exchange, Json
from .sender import Sender, sender

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
REFUSED = (400, 422)
"""Statuses by which a request is wrong."""


class HarvestMiddleware:
    """Harvests the answers of an application that speaks as vLLM does."""

    def __init__(self, app: App, sender: Sender) -> None:
        self.app, self.sender = app, sender

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._closing(send))
            return
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in PATHS or _declined(scope):
            await self.app(scope, receive, send)
            return
        body, gone = await whole_body(receive)
        with self.sender.timed():
            harvest = self._harvest(scope, body, send) if not gone else None
        if harvest is None:
            await self.app(scope, _replay(body, receive, gone), send)
            return
        asked, answer = harvest
        await self.app(_with_length(scope, asked), _replay(asked, receive, gone=False), answer.send)
        if answer.refused:
            await self.app(scope, _replay(body, receive, gone=False), self._untouched(send))

    def _closing(self, send: Send) -> Send:
        """Return a send function by which the sender is closed before the server hears that it may end."""

        async def passed(message: Message) -> None:
            if message["type"] == "lifespan.shutdown.complete":
                await asyncio.to_thread(self.sender.close)
            await send(message)

        return passed

    def _untouched(self, send: Send) -> Send:
        """Return a send function that passes everything on, and counts what was refused for our sake alone."""

        async def passed(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                self.sender.failed(ValueError("vLLM refuses what is asked beside, and answers without it"))
            await send(message)

        return passed

    def _harvest(self, scope: MutableMapping[str, Any], body: bytes, send: Send) -> tuple[bytes, _Answer] | None:
        """Return what is asked instead, and the answer to come; None for a request that passes untouched."""
        try:
            depth = self.sender.depth()
            exchange = Exchange.of_request(scope["path"], body, depth, shows_metrics=self.sender.shows_metrics)
            if exchange is None:
                return None
            facts = {**self._facts(scope), "adapter": _adapter(scope, exchange.asked.get("model"))}
            asked = exchange.body_for_vllm(depth, self.sender.salt(facts["version"]))
            return asked, _Answer(exchange, send, self.sender, facts)
        except Exception as error:
            self.sender.failed(error)
            return None

    def _facts(self, scope: MutableMapping[str, Any]) -> Json:
        """Return what of a request's headers goes into its record: never a key, only its digest."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return {
            "id": uuid.uuid4().hex,
            "key": hashlib.sha256(key.encode()).hexdigest() if scheme.lower() == "bearer" and key else None,
            "tenant": headers.get(self.sender.tenant_header) if self.sender.tenant_header else None,
            "route": headers.get("x-osd-route"),
            "version": self.sender.serving,
            "target": self.sender.target,
            "began": time.time(),
        }


class Harvest(HarvestMiddleware):
    """The middleware with this process's sender."""

    def __init__(self, app: App) -> None:
        super().__init__(app, sender())
        self.sender.harvests = True


@dataclass(slots=True)
class _Answer:
    """An answer on its way to the client."""

    exchange: Exchange
    forward: Send
    sender: Sender
    facts: Json
    start: Message | None = None
    passes: bool = False
    """Whether it is an error, which passes as it is."""
    refused: bool = False
    """Whether vLLM calls the request wrong: it is then asked again as the client asked, lest the fault be ours."""
    streams: bool = False
    kept: bytes = b""

    async def send(self, message: Message) -> None:
        """Pass on what vLLM sends, less what is ours."""
        if message["type"] == "http.response.start":
            await self._start(message)
        elif self.refused:
            return
        elif message["type"] != "http.response.body" or self.passes:
            await self.forward(message)
        elif self.streams:
            await self._chunk(message)
        else:
            await self._part(message)

    async def _start(self, message: Message) -> None:
        self.refused = message["status"] in REFUSED
        if self.refused:
            return
        self.passes = message["status"] != 200
        kind = dict(message["headers"]).get(b"content-type", b"")
        self.streams = kind.startswith(b"text/event-stream")
        if self.streams or self.passes:
            await self.forward(message)
        else:
            self.start = message

    async def _chunk(self, message: Message) -> None:
        self.kept += message.get("body", b"")
        events = self.kept.split(b"\n\n")
        self.kept = events.pop()
        with self.sender.timed():
            out = b"".join(self._event(event) for event in events)
        more = message.get("more_body", False)
        if not more:
            out += self.kept
            self._keep()
        if out or not more:
            await self.forward({"type": "http.response.body", "body": out, "more_body": more})

    def _event(self, event: bytes) -> bytes:
        try:
            if event == b"data: [DONE]":
                return b"".join(map(_event, self.exchange.held())) + event + b"\n\n"
            if not event.startswith(b"data: {"):
                return event + b"\n\n"
            return b"".join(map(_event, self.exchange.client_chunks(json.loads(event[6:]))))
        except Exception as error:
            self.sender.failed(error)
            return event + b"\n\n"

    async def _part(self, message: Message) -> None:
        self.kept += message.get("body", b"")
        if message.get("more_body", False):
            return
        try:
            with self.sender.timed():
                out = _encode(self.exchange.client_answer(json.loads(self.kept)))
        except Exception as error:
            self.sender.failed(error)
            out = self.kept
        start = self.start
        assert start is not None
        await self.forward({**start, "headers": _sized(start["headers"], len(out))})
        await self.forward({"type": "http.response.body", "body": out, "more_body": False})
        self._keep()

    def _keep(self) -> None:
        """Hand the record to the sender, once the client has its answer."""
        try:
            if not self.exchange.complete:
                self.sender.skipped()
                return
            seen = {"ended": time.time(), "version_after": self.sender.serving}
            with self.sender.timed():
                self.sender.put(self.facts | seen | self.exchange.record())
        except Exception as error:
            self.sender.failed(error)


def _adapter(scope: MutableMapping[str, Any], model: Any) -> str | None:
    """Return the name of the LoRA adapter that a request asks for; None where it asks for vLLM's own model."""
    served = getattr(getattr(scope.get("app"), "state", None), "openai_serving_models", None)
    found: str | None = model if model in getattr(served, "lora_requests", ()) else None
    return found


def _declined(scope: MutableMapping[str, Any]) -> bool:
    """Return whether the client wants nothing of its request kept: ``X-OSD-Learn: false``."""
    return any(
        name.lower() == b"x-osd-learn" and value.strip().lower() in (b"false", b"0") for name, value in scope["headers"]
    )


async def whole_body(receive: Receive) -> tuple[bytes, bool]:
    """Return the body, and whether the client has gone before its end."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body, True
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body, False


def _replay(body: bytes, receive: Receive, gone: bool) -> Receive:
    """Return a receive function that gives a body once, then what comes."""
    waiting: list[Message] = [{"type": "http.disconnect"}] if gone else []
    waiting.append({"type": "http.request", "body": body, "more_body": False})

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


def _with_length(scope: MutableMapping[str, Any], body: bytes) -> MutableMapping[str, Any]:
    return {**scope, "headers": _sized(scope["headers"], len(body))}


def _sized(headers: Iterable[tuple[bytes, bytes]], size: int) -> list[tuple[bytes, bytes]]:
    others = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return [*others, (b"content-length", str(size).encode())]


def _encode(answer: Json) -> bytes:
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def _event(chunk: Json) -> bytes:
    return b"data: " + _encode(chunk) + b"\n\n"
