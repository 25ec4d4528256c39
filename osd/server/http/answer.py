"""One call from its order to its answer: whole, or as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from osd.engine.text_stream import TextStream
from osd.server.core.client import Arrived, Call, calling
from osd.server.core.messages import JobOutput
from osd.server.errors import ApiError
from osd.server.http.answer_parts import Delta, HeldScores, Json, PromptEcho, TokenText, speculative_decoding
from osd.server.http.keys import Caller
from osd.server.http.order import Order
from osd.server.http.service import Service
from osd.server.http.tool_calls import CallReader, join_calls
from storage.records import new_id, now

WHOLE_SECONDS = 1.0
"""Seconds between checks of the key while a whole answer is awaited."""
GONE = 499
"""nginx's status for a client that has gone; nobody reads it."""
ENCODE = json.JSONEncoder(ensure_ascii=False).encode
MARK = "\x00osd\x00"
"""A placeholder text that no name in a chunk contains."""
DONE = "data: [DONE]\n\n"


class Choice:
    """One choice of an answer as it grows. Fed with outputs, it hands out deltas, which together are the answer."""

    def __init__(self, stream: TextStream, scores: HeldScores | None = None, calls: CallReader | None = None) -> None:
        """``scores``: where log-probabilities were asked for; ``calls``: where calls of tools are read."""
        self._stream, self._scores, self._calls = stream, scores, calls.stream() if calls else None
        self.length = 0
        """Tokens so far."""
        self.steps: tuple[tuple[int, int], ...] = ()
        """(drafted, accepted) of each round, once it is finished."""
        self.finish_reason: str | None = None
        self.version: str | None = None
        self.route: str | None = None

    def take(self, output: JobOutput) -> Delta:
        """Take in what decoding steps brought; return what can be shown now."""
        self.version, self.route = output.version or self.version, output.route or self.route
        self.finish_reason, self.steps = output.finish_reason, output.steps
        self.length += len(output.tokens)
        stream, last = self._stream, output.finish_reason is not None
        text = self._scores.push(stream, output) if self._scores else stream.push(output.tokens)
        if last:
            text += stream.finish()
        delta = Delta(text, self._scores.release(stream, last=last) if self._scores else [], output.finish_reason)
        return self._calls.divide(delta) if self._calls else delta


def joined(deltas: Sequence[Delta]) -> Delta:
    """Return deltas that follow each other as one."""
    if len(deltas) == 1:
        return deltas[0]
    text, scored = "".join(delta.text for delta in deltas), [one for delta in deltas for one in delta.scored]
    calls = [call for delta in deltas for call in delta.calls]
    return Delta(text, scored, deltas[-1].finish_reason, deltas[0].prompt, join_calls(calls) if calls else calls)


class Shape(NamedTuple):
    """The JSON of one kind of answer."""

    prefix: str
    """Prefix of its ids."""
    whole: str
    """`object` of a whole answer."""
    chunk: str
    """`object` of a chunk."""
    prompt_above: bool
    """Whether `prompt_logprobs` stands beside the choices, and not in each."""
    choice: Callable[[int, Delta, TokenText, bool], Json]
    """Returns a choice of a whole answer. Told its number, and whether log-probabilities were asked for."""
    part: Callable[[int, Delta, TokenText, bool, bool], Json]
    """Returns a choice of a chunk. Told as well whether it is the first."""


class EventStream(StreamingResponse):
    """A response of server-sent events that always closes its source."""

    def __init__(self, events: AsyncIterator[str], stack: AsyncExitStack, headers: dict[str, str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with self._stack:
            await self.stream_response(send)  # Starlette would watch for a disconnect as well; the call does already


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
    _templates: dict[tuple[int, str | None], tuple[str, str]] = field(default_factory=dict)
    """What stands before and after a chunk's text, by choice and draft version."""

    def __post_init__(self) -> None:
        detokenizer, eos_ids = self.service.detokenizer, frozenset(self.service.facts.eos_ids)
        self.id = self.shape.prefix + new_id()
        requests, calls = self.order.requests, self.order.asked.calls
        hidden = calls.hidden if calls else None
        echo, top, prompt_logprobs = self.order.asked.echo, self.order.asked.top, self.order.body.prompt_logprobs
        self.choices = [
            Choice(TextStream(detokenizer, one, eos_ids, hidden), None if top is None else HeldScores(), calls)
            for one in requests
        ]
        shows = echo or prompt_logprobs is not None
        self.echoes = [PromptEcho(detokenizer, one, echo, top, prompt_logprobs) for one in requests if shows]

    async def respond(self, http: HttpRequest) -> Response:
        """Return the response; a stream begins with its first token, so that an earlier error has its own status."""
        service, order, streams = self.service, self.order, bool(self.order.body.stream)
        pause = service.settings.server.stream_ms / 1000 if streams else WHOLE_SECONDS
        async with AsyncExitStack() as stack:
            call = await stack.enter_async_context(calling(
                service.client, http.receive, order.requests, top=order.asked.top, seconds=order.seconds, pause=pause
            ))  # fmt: skip
            stack.callback(self._account, call)
            outputs = call.outputs(partial(service.ring.check, self.caller))
            if not streams:
                return await self._whole(outputs)
            first = await anext(outputs, None)
            if first is None:
                return Response(status_code=GONE)
            return EventStream(self._events(self._lines(first), outputs), stack.pop_all(), self._headers())

    async def _whole(self, outputs: AsyncIterator[list[Arrived]]) -> Response:
        deltas: list[list[Delta]] = [[] for _ in self.choices]
        async for some in outputs:
            for index, output in some:
                deltas[index].append(self._take(index, output))
        if not all(choice.finish_reason for choice in self.choices):
            return Response(status_code=GONE)
        scored, wholes = self.order.asked.top is not None, [joined(parts) for parts in deltas]
        choices = [self.shape.choice(i, whole, self.service.token_text, scored) for i, whole in enumerate(wholes)]
        frame = {**self._frame(self.shape.whole, choices), **self._prompt(wholes[0])}
        return JSONResponse({**frame, "usage": self._usage(), **self._closing()}, headers=self._headers())

    async def _events(self, opening: str, outputs: AsyncIterator[list[Arrived]]) -> AsyncIterator[str]:
        """Yield the chunks. An error is sent as an event now, since the status was sent."""
        try:
            yield opening
            async for some in outputs:
                if lines := self._lines(some):
                    yield lines
            if all(choice.finish_reason for choice in self.choices):
                yield self._last()
        except ApiError as error:
            yield error.event()

    def _lines(self, some: Sequence[Arrived]) -> str:
        """Return a chunk for each choice with new tokens; empty where there is nothing to show."""
        firsts = {index: self.choices[index].version is None for index, _ in some}
        deltas: dict[int, list[Delta]] = {}
        for index, output in some:
            deltas.setdefault(index, []).append(self._take(index, output))
        return "".join(self._line(i, joined(parts), first=firsts[i]) for i, parts in deltas.items())

    def _take(self, index: int, output: JobOutput) -> Delta:
        delta = self.choices[index].take(output)
        return self.echoes[index].add(delta, output.prompt, self.service.token_text) if self.echoes else delta

    def _prompt(self, delta: Delta) -> Json:
        """Return what stands beside the choices about the prompt."""
        return {} if delta.prompt is None or not self.shape.prompt_above else {"prompt_logprobs": delta.prompt}

    def _line(self, index: int, delta: Delta, *, first: bool) -> str:
        if first or delta.scored or delta.finish_reason or delta.calls:
            return self._chunk(index, delta, first=first)
        if not delta.text:
            return ""
        before, after = self._template(index, self._version())
        return f"{before}{ENCODE(delta.text)}{after}"

    def _chunk(self, index: int, delta: Delta, *, first: bool) -> str:
        scored = self.order.asked.top is not None
        part = self.shape.part(index, delta, self.service.token_text, scored, first)
        usage = {"usage": None} if self.order.usage_chunk else {}
        return event({**self._frame(self.shape.chunk, [part]), **self._prompt(delta), **usage})

    def _template(self, index: int, version: str | None) -> tuple[str, str]:
        """Return what stands around the text of chunks that have text and nothing else, as most do."""
        if (index, version) not in self._templates:
            before, after = self._chunk(index, Delta(MARK), first=False).split(ENCODE(MARK))
            self._templates[index, version] = before, after
        return self._templates[index, version]

    def _last(self) -> str:
        """Return a chunk without choices for usage and metrics if there are any, and the end mark."""
        if not (self.order.usage_chunk or self.order.detail != "off"):
            return DONE
        usage = {"usage": self._usage()} if self.order.usage_chunk else {}
        return event({**self._frame(self.shape.chunk, []), **usage, **self._closing()}) + DONE

    def _frame(self, kind: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.id, "object": kind, "created": self.created, "model": self.service.model,
            "system_fingerprint": self._version(), "choices": choices,
        }  # fmt: skip

    def _version(self) -> str | None:
        return next((choice.version for choice in reversed(self.choices) if choice.version), None)

    def _usage(self) -> Json:
        per_prompt = len(self.choices) // len(self.order.asked.prompts)
        prompt = sum(len(request.prompt_tokens) for request in self.order.requests[::per_prompt])
        output = sum(choice.length for choice in self.choices if choice.finish_reason)
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def _closing(self) -> Json:
        """Return osd's own fields, and vLLM's metrics where they were asked for."""
        own: Json = {
            "route": [choice.route for choice in self.choices], "draft_version": [one.version for one in self.choices]
        }  # fmt: skip
        if lossy := self.service.settings.serve.lossy:
            own["lossy"] = lossy
        steps = [step for choice in self.choices for step in choice.steps]
        found = speculative_decoding(steps, self.service.facts.gamma_max, self.order.detail)
        return {"osd": own} | ({"metrics": {"speculative_decoding": found}} if found else {})

    def _headers(self) -> dict[str, str]:
        found = {
            "X-OSD-Draft-Version": self._version(), "X-OSD-Route": self.choices[0].route,
            "X-OSD-Lossy": self.service.settings.serve.lossy,
        }  # fmt: skip
        return {name: value for name, value in found.items() if value and value.isascii()}

    def _account(self, call: Call) -> None:
        """Charge what the call used, however it ended once it was admitted."""
        if call.refused:
            return
        prompt = self._usage()["prompt_tokens"]
        self.caller.charge(prompt + call.emitted)
        meters = self.service.meters
        meters.tokens.labels("prompt").inc(prompt)
        meters.tokens.labels("output").inc(call.emitted)
        if call.first is None or call.seconds is None:
            return
        meters.timed(first=call.first, whole=call.seconds)
        if (after := call.emitted - len(self.choices)) > 0:
            meters.timed(each=(call.seconds - call.first) / after * len(self.choices))


def event(body: Json) -> str:
    """Format a server-sent event with a JSON body."""
    return f"data: {ENCODE(body)}\n\n"
