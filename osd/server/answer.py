"""One call from its order to its answer: whole, or as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from osd.server.choice import Choice, Delta
from osd.server.errors import ApiError
from osd.server.flight import Arrived, Flight, flying
from osd.server.order import Order
from osd.server.ring import Caller
from osd.server.service import Service
from osd.server.shapes import Json, Shape
from osd.server.speculation import speculative_decoding
from storage.records import new_id, now

GONE = 499
"""What nginx writes for a client that did not wait; nobody reads it."""


@dataclass(slots=True)
class Answer:
    """A call that is being answered."""

    service: Service
    shape: Shape
    order: Order
    caller: Caller
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(now()))
    choices: list[Choice] = field(init=False)

    def __post_init__(self) -> None:
        pair = self.service.engine.pair
        self.id = self.shape.prefix + new_id()
        self.choices = [Choice(pair.tokenizer, request.stop, pair.eos_ids) for request in self.order.requests]

    async def respond(self, http: HttpRequest) -> Response:
        """The response; a stream begins with its first token, so that what fails before it has a status of its own."""
        async with AsyncExitStack() as stack:
            service, order = self.service, self.order
            flight = await stack.enter_async_context(
                flying(service.thread, http, order.requests, top=order.top, seconds=order.seconds)
            )
            stack.callback(self._account, flight)
            pieces = flight.pieces(self.caller, service.ring)
            if not order.stream:
                return await self._whole(pieces)
            first = await anext(pieces, None)
            if first is None:
                return Response(status_code=GONE)
            opening = self._line(first)
            return EventStream(self._events(opening, pieces), stack.pop_all(), self._headers())

    async def _whole(self, pieces: AsyncIterator[Arrived]) -> Response:
        deltas: list[list[Delta]] = [[] for _ in self.choices]
        async for index, piece in pieces:
            deltas[index].append(self.choices[index].take(piece))
        if not all(choice.completion for choice in self.choices):
            return Response(status_code=GONE)
        scored = self.order.top is not None
        choices = [
            self.shape.choice(i, _together(parts), self.service.token_text, scored=scored)
            for i, parts in enumerate(deltas)
        ]
        body = {**self._frame(self.shape.whole, choices), "usage": self._usage(), **self._closing()}
        return JSONResponse(body, headers=self._headers())

    async def _events(self, opening: str, pieces: AsyncIterator[Arrived]) -> AsyncIterator[str]:
        """The chunks. What fails now is an event, for the status is gone."""
        try:
            yield opening
            async for arrived in pieces:
                if line := self._line(arrived):
                    yield line
            if all(choice.completion for choice in self.choices):
                yield self._last()
        except ApiError as error:
            yield _event(error.body())

    def _line(self, arrived: Arrived) -> str:
        """A step's chunk; empty where there is nothing to show of it."""
        index, piece = arrived
        choice = self.choices[index]
        first = choice.version is None
        delta = choice.take(piece)
        if not (first or delta.text or delta.scored or delta.finish_reason):
            return ""
        scored = self.order.top is not None
        part = self.shape.part(index, delta, self.service.token_text, scored=scored, first=first)
        usage = {"usage": None} if self.order.usage_chunk else {}
        return _event({**self._frame(self.shape.chunk, [part]), **usage})

    def _last(self) -> str:
        """A chunk without choices where something is to be said of the whole call, and the end."""
        said = {"usage": self._usage()} if self.order.usage_chunk else {}
        if self.order.usage_chunk or self.order.detail != "off":
            return _event({**self._frame(self.shape.chunk, []), **said, **self._closing()}) + "data: [DONE]\n\n"
        return "data: [DONE]\n\n"

    def _frame(self, kind: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.id, "object": kind, "created": self.created, "model": self.service.model,
            "system_fingerprint": self._version(), "choices": choices,
        }  # fmt: skip

    def _version(self) -> str | None:
        return next((choice.version for choice in reversed(self.choices) if choice.version), None)

    def _usage(self) -> Json:
        per_prompt = len(self.choices) // self.order.prompts
        prompt = sum(len(request.prompt_tokens) for request in self.order.requests[::per_prompt])
        output = sum(len(choice.completion.tokens) for choice in self.choices if choice.completion)
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def _closing(self) -> Json:
        """osd's own part, and vLLM's numbers where they were asked for."""
        done = [choice.completion for choice in self.choices if choice.completion]
        own = {"route": [one.route for one in done], "draft_version": [choice.version for choice in self.choices]}
        rounds = [r for one in done for r in one.rounds]
        found = speculative_decoding(rounds, self.service.engine.settings.gamma_max, self.order.detail)
        return {"osd": own} | ({"metrics": {"speculative_decoding": found}} if found else {})

    def _headers(self) -> dict[str, str]:
        found = {"X-OSD-Draft-Version": self._version(), "X-OSD-Route": self.choices[0].route}
        return {name: value for name, value in found.items() if value and value.isascii()}

    def _account(self, flight: Flight) -> None:
        """What the call used, however it ended."""
        prompt = self._usage()["prompt_tokens"]
        self.caller.charge(prompt + flight.emitted)
        meters = self.service.meters
        meters.tokens.labels("prompt").inc(prompt)
        meters.tokens.labels("output").inc(flight.emitted)
        if flight.first is not None:
            meters.first.observe(flight.first)
            if (after := flight.emitted - len(self.choices)) > 0 and flight.seconds is not None:
                meters.each.observe((flight.seconds - flight.first) / after * len(self.choices))


class EventStream(StreamingResponse):
    """Server-sent events, with something to be closed whatever becomes of them."""

    def __init__(self, events: AsyncIterator[str], stack: AsyncExitStack, headers: dict[str, str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        async with self._stack:
            await super().__call__(scope, receive, send)


def _together(deltas: Sequence[Delta]) -> Delta:
    scored = [one for delta in deltas for one in delta.scored]
    return Delta("".join(delta.text for delta in deltas), scored, deltas[-1].finish_reason)


def _event(body: Any) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
