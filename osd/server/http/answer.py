"""One call from its order to its answer: whole, or as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from osd.engine.text_stream import TextStream
from osd.server.core.messages import JobOutput
from osd.server.errors import ApiError
from osd.server.http.call import Arrived, Call, flying
from osd.server.http.choice import Choice, Delta
from osd.server.http.echo import PromptEcho
from osd.server.http.events import MARK, ChunkTemplate, EventStream, event
from osd.server.http.keys import Caller
from osd.server.http.order import Order
from osd.server.http.service import Service
from osd.server.http.shapes import Json, Shape
from osd.server.http.speculation import speculative_decoding
from osd.server.http.tool_calls import join_calls
from storage.records import new_id, now

WHOLE_SECONDS = 1.0
"""Seconds between checks of the key while a whole answer is awaited."""
GONE = 499
"""nginx's status for a client that has gone; nobody reads it."""


@dataclass(slots=True)
class Answer:
    """The answering of one call."""

    service: Service
    shape: Shape
    order: Order
    caller: Caller
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(now()))
    choices: list[Choice] = field(init=False)
    echoes: list[PromptEcho] = field(init=False)
    """One a choice where the prompt is a part of the answer; else none."""
    _molds: dict[tuple[int, str | None], ChunkTemplate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        detokenizer, eos_ids = self.service.detokenizer, frozenset(self.service.facts.eos_ids)
        self.id = self.shape.prefix + new_id()
        order, calls = self.order, self.order.calls
        self.choices = [
            Choice(TextStream(detokenizer, request, eos_ids, calls.hidden if calls else None), calls)
            for request in order.requests
        ]
        shows = order.echo or order.prompt_logprobs is not None
        self.echoes = [
            PromptEcho(detokenizer, request, order.echo, order.top, order.prompt_logprobs)
            for request in order.requests if shows
        ]  # fmt: skip

    async def respond(self, http: HttpRequest) -> Response:
        """Return the response; a stream begins with its first token, so that an earlier error has its own status."""
        async with AsyncExitStack() as stack:
            service, order = self.service, self.order
            flight = await stack.enter_async_context(
                flying(service.thread, http, order.requests, top=order.top, seconds=order.seconds, pause=self._pause)
            )
            stack.callback(self._account, flight)
            pieces = flight.pieces(self.caller, service.ring)
            if not order.stream:
                return await self._whole(pieces)
            first = await anext(pieces, None)
            if first is None:
                return Response(status_code=GONE)
            opening = self._lines(first)
            return EventStream(self._events(opening, pieces), stack.pop_all(), self._headers())

    async def _whole(self, pieces: AsyncIterator[list[Arrived]]) -> Response:
        deltas: list[list[Delta]] = [[] for _ in self.choices]
        async for some in pieces:
            for index, piece in some:
                deltas[index].append(self._take(index, piece))
        if not all(choice.done for choice in self.choices):
            return Response(status_code=GONE)
        scored = self.order.top is not None
        wholes = [_together(parts) for parts in deltas]
        choices = [
            self.shape.choice(i, whole, self.service.token_text, scored=scored) for i, whole in enumerate(wholes)
        ]
        frame = {**self._frame(self.shape.whole, choices), **self._prompt(wholes[0])}
        body = {**frame, "usage": self._usage(), **self._closing()}
        return JSONResponse(body, headers=self._headers())

    async def _events(self, opening: str, pieces: AsyncIterator[list[Arrived]]) -> AsyncIterator[str]:
        """Yield the chunks. An error is sent as an event now, since the status was sent."""
        try:
            yield opening
            async for some in pieces:
                if lines := self._lines(some):
                    yield lines
            if all(choice.done for choice in self.choices):
                yield self._last()
        except ApiError as error:
            yield event(error.body())

    @property
    def _pause(self) -> float:
        return self.service.settings.server.stream_ms / 1000 if self.order.stream else WHOLE_SECONDS

    def _lines(self, some: Sequence[Arrived]) -> str:
        """Return a chunk for each choice with new tokens; empty where there is nothing to show."""
        firsts = {index: self.choices[index].version is None for index, _ in some}
        deltas: dict[int, list[Delta]] = {}
        for index, piece in some:
            deltas.setdefault(index, []).append(self._take(index, piece))
        return "".join(self._line(i, _together(parts), first=firsts[i]) for i, parts in deltas.items())

    def _take(self, index: int, piece: JobOutput) -> Delta:
        delta = self.choices[index].take(piece)
        return self.echoes[index].add(delta, piece.prompt, self.service.token_text) if self.echoes else delta

    def _prompt(self, delta: Delta) -> Json:
        """Return what stands beside the choices about the prompt."""
        return {} if delta.prompt is None or not self.shape.prompt_above else {"prompt_logprobs": delta.prompt}

    def _line(self, index: int, delta: Delta, *, first: bool) -> str:
        if first or delta.scored or delta.finish_reason or delta.calls:
            return self._chunk(index, delta, first=first)
        return self._mold(index, self._version()).join_text(delta.text) if delta.text else ""

    def _chunk(self, index: int, delta: Delta, *, first: bool) -> str:
        scored = self.order.top is not None
        part = self.shape.part(index, delta, self.service.token_text, scored=scored, first=first)
        usage = {"usage": None} if self.order.usage_chunk else {}
        return event({**self._frame(self.shape.chunk, [part]), **self._prompt(delta), **usage})

    def _mold(self, index: int, version: str | None) -> ChunkTemplate:
        """Return the template of chunks that have text and nothing else, as most do: they differ in the text alone."""
        if (index, version) not in self._molds:
            self._molds[index, version] = ChunkTemplate.of(self._chunk(index, Delta(MARK), first=False))
        return self._molds[index, version]

    def _last(self) -> str:
        """Return a chunk without choices for usage and metrics if there are any, and the end mark."""
        said = {"usage": self._usage()} if self.order.usage_chunk else {}
        if self.order.usage_chunk or self.order.detail != "off":
            return event({**self._frame(self.shape.chunk, []), **said, **self._closing()}) + "data: [DONE]\n\n"
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
        output = sum(choice.done.length for choice in self.choices if choice.done)
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def _closing(self) -> Json:
        """Return osd's own fields, and vLLM's metrics where they were asked for."""
        done = [choice.done for choice in self.choices if choice.done]
        own: Json = {"route": [one.route for one in done], "draft_version": [choice.version for choice in self.choices]}
        if lossy := self.service.settings.serve.lossy:
            own["lossy"] = lossy
        steps = [step for one in done for step in one.steps]
        found = speculative_decoding(steps, self.service.facts.gamma_max, self.order.detail)
        return {"osd": own} | ({"metrics": {"speculative_decoding": found}} if found else {})

    def _headers(self) -> dict[str, str]:
        found = {
            "X-OSD-Draft-Version": self._version(), "X-OSD-Route": self.choices[0].route,
            "X-OSD-Lossy": self.service.settings.serve.lossy,
        }  # fmt: skip
        return {name: value for name, value in found.items() if value and value.isascii()}

    def _account(self, flight: Call) -> None:
        """Charge what the call used, however it ended once it was admitted."""
        if flight.refused:
            return
        prompt = self._usage()["prompt_tokens"]
        self.caller.charge(prompt + flight.emitted)
        meters = self.service.meters
        meters.tokens.labels("prompt").inc(prompt)
        meters.tokens.labels("output").inc(flight.emitted)
        if flight.first is None or flight.seconds is None:
            return
        meters.timed(first=flight.first, whole=flight.seconds)
        if (after := flight.emitted - len(self.choices)) > 0:
            meters.timed(each=(flight.seconds - flight.first) / after * len(self.choices))


def _together(deltas: Sequence[Delta]) -> Delta:
    scored = [one for delta in deltas for one in delta.scored]
    calls = join_calls(call for delta in deltas for call in delta.calls)
    return Delta("".join(delta.text for delta in deltas), scored, deltas[-1].finish_reason, deltas[0].prompt, calls)
