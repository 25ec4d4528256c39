"""From a body to the engine's requests. What cannot be served is refused here, before anything waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from starlette.requests import Request as HttpRequest

from osd.engine.validation import check_request
from osd.server.errors import ApiError, ContextOverflow, UnknownModel
from osd.server.http.protocol import Detail, OsdFields, SamplingBody, osd_fields
from osd.server.http.service import Service
from storage.records import Request
from storage.sampling import Grammar
from storage.settings import ServerSettings

if TYPE_CHECKING:
    from osd.server.http.tool_calls import CallReader


@dataclass(frozen=True, slots=True)
class TokensPrompt:
    """A prompt as the engine reads it."""

    tokens: tuple[int, ...]
    text: str | None
    """None where it was given as token ids."""
    field: str
    """The field of the body that has it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for, under one name for completions and chats."""

    prompts: Sequence[TokensPrompt]
    max_tokens: int | None
    top: int | None
    """Number of likeliest tokens whose log-probabilities are returned; None returns no log-probabilities."""
    top_field: str
    grammar: Grammar | None
    echo: bool = False
    """Whether the prompt's text stands before the answer's."""
    calls: CallReader | None = None
    """Reads calls of tools out of each answer."""


@dataclass(frozen=True, slots=True)
class Order:
    """The validated contents of one call."""

    requests: list[Request]
    """Choices of the first prompt, then of the second, …"""
    body: SamplingBody
    asked: Asked
    seconds: float | None
    """Seconds until its deadline."""
    detail: Detail

    @property
    def usage_chunk(self) -> bool:
        """Whether a stream's last chunk has its usage."""
        return bool(self.body.stream_options and self.body.stream_options.include_usage)


def service_of(http: HttpRequest) -> Service:
    """Return the service that a route belongs to."""
    return cast(Service, http.app.state.service)


def make_order(service: Service, http: HttpRequest, body: SamplingBody, asked: Asked) -> Order:
    """Convert a body. Raises ApiError."""
    server, fields = service.settings.server, osd_fields(body.osd, http.headers)
    check_model(service, body.model)
    _check_counts(server, body, asked)
    if fields.gamma is not None and fields.gamma > service.facts.gamma_max:
        reason = f"osd.gamma: {service.facts.gamma_max} at most (gamma.max)"
        raise ApiError(reason=reason, param="osd.gamma")
    requests = list(_requests(service, body, asked, fields, http.state.caller.tenant))
    deadlines = [ms / 1000 for ms in (server.deadline_ms, fields.deadline_ms) if ms is not None]
    return Order(requests, body, asked, min(deadlines, default=None), fields.metrics or server.metrics)


def check_model(service: Service, model: str | None) -> None:
    """Raise UnknownModel for any but the served model."""
    if model is not None and model != service.model:
        raise UnknownModel(model=model, known=service.model, param="model")


def _check_counts(server: ServerSettings, body: SamplingBody, asked: Asked) -> None:
    n, prompts = body.n or 1, len(asked.prompts)
    if n > server.max_choices:
        reason = f"n: {n} is too large; this server gives {server.max_choices} choices at most (server.max_choices)"
        raise ApiError(reason=reason, param="n")
    if (count := n * prompts) > server.queue:
        reason = f"{prompts} prompts with n = {n} are {count} requests, and {server.queue} may wait (server.queue)"
        raise ApiError(reason=f"prompt: {reason}; send fewer at a time", param="prompt")
    for name, top in ((asked.top_field, asked.top), ("prompt_logprobs", body.prompt_logprobs)):
        if top is not None and top > server.max_logprobs:
            reason = f"{name}: {server.max_logprobs} tokens at most, not {top} (server.max_logprobs)"
            raise ApiError(reason=reason, param=name)


def _requests(service: Service, body: SamplingBody, asked: Asked, fields: OsdFields, tenant: str) -> Iterator[Request]:
    """Yield the requests of each prompt's choices, checked."""
    hidden = asked.calls is not None and asked.calls.hidden is not None
    request = partial(
        Request,
        stop=_stop(service, body),
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False and not hidden,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        min_tokens=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        route=fields.route,
        tenant=tenant,
        model=service.model,
        learn=service.settings.server.learn and fields.learn is not False,
        language=fields.language,
        gamma=fields.gamma,
        grammar=asked.grammar,
        prompt_logprobs=_prompt_logprobs(body, asked),
        operation="chat" if asked.prompts[0].field == "messages" else "text_completion",
    )
    for prompt in asked.prompts:
        room = _room(service, prompt, asked.max_tokens)
        for number in range(body.n or 1):
            sampling = body.sampling(number, service.facts.temperature)
            made = request(prompt.tokens, max_new_tokens=room, sampling=sampling, text=prompt.text)
            check_request(made, service, service.facts.limit)
            yield made


def _prompt_logprobs(body: SamplingBody, asked: Asked) -> int | None:
    """Return how many likeliest tokens the engine is asked for at each token of the prompt; None for none at all."""
    echoed = (asked.top or 0) if asked.echo and (asked.top is not None or asked.max_tokens == 0) else None
    return max((count for count in (body.prompt_logprobs, echoed) if count is not None), default=None)


def _room(service: Service, prompt: TokensPrompt, most: int | None) -> int:
    """Return the maximum number of new tokens. Raises ContextOverflow."""
    length, limit = len(prompt.tokens), service.facts.limit
    if length + (1 if most is None else most) > limit:
        asked = f"{length} tokens of the prompt" + ("" if most is None else f" and {most} to come")
        ours = service.settings.serve.max_length == limit
        holds = (
            f"A row here holds {limit} tokens (serve.max_length)" if ours else f"This model's context is {limit} tokens"
        )
        reason = f"{holds}, and the request asks for {asked}. Shorten one of them."
        raise ContextOverflow(reason=reason, param=prompt.field)
    room = limit - length if most is None else most
    return min(room, service.facts.max_new_tokens or room)


def _stop(service: Service, body: SamplingBody) -> tuple[str, ...]:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stops) > (most := service.settings.server.max_stop):
        raise ApiError(reason=f"stop: {most} strings at most (server.max_stop), not {len(stops)}", param="stop")
    return tuple(dict.fromkeys((*stops, *service.facts.stops)))
