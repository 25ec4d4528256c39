"""Conversion of a body to the engine's requests. What cannot be served is refused here, before anything waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from osd.engine.validation import check_request
from osd.server.errors import ApiError, ContextOverflow, UnknownModel
from osd.server.http.chat import calls_of, chat_text, forced_calls, last_user_text
from osd.server.http.service import Service
from osd.server.http.structured import grammar_of
from osd.server.http.tool_calls import CallReader
from osd.server.http.wire import ChatBody, CompletionBody, Detail, OsdFields, SamplingBody, osd_fields
from storage.records import Request
from storage.sampling import Grammar


@dataclass(frozen=True, slots=True)
class Order:
    """The validated contents of one call."""

    requests: list[Request]
    """Choices of the first prompt, then of the second, …"""
    prompts: int
    top: int | None
    """Number of likeliest tokens whose log-probabilities are returned; None returns no log-probabilities."""
    echo: bool
    """Whether the prompt's text stands before the answer's."""
    prompt_logprobs: int | None
    """Number of likeliest tokens at each of the prompt's; None returns no log-probabilities of the prompt."""
    seconds: float | None
    """Seconds until its deadline."""
    detail: Detail
    stream: bool
    usage_chunk: bool
    calls: CallReader | None = None
    """Reads calls of tools out of each answer."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    tokens: tuple[int, ...]
    text: str | None
    field: str


def chat_order(service: Service, body: ChatBody, headers: Mapping[str, str], tenant: str) -> Order:
    """Convert a chat's body. Raises ApiError."""
    text = chat_text(service.template, body, body.messages)
    tokens = tuple(service.tokenizer.encode(text, add_special_tokens=bool(body.add_special_tokens)))
    prompt = _Prompt(tokens, last_user_text(body.messages), "messages")
    if body.top_logprobs and not body.logprobs:
        raise ApiError(reason="top_logprobs needs logprobs to be true", param="top_logprobs")
    top = (body.top_logprobs or 0) if body.logprobs else None
    most = body.max_completion_tokens or body.max_tokens
    grammar = grammar_of(body, forced_calls(service, body))
    order, calls = _order(service, body, headers, tenant, [prompt], most, top, grammar), calls_of(service, body)
    if calls and calls.hidden is not None:
        requests = [replace(request, skip_special_tokens=False) for request in order.requests]
        order = replace(order, requests=requests)
    return replace(order, calls=calls)


def completion_order(service: Service, body: CompletionBody, headers: Mapping[str, str], tenant: str) -> Order:
    """Convert a completion's body. Raises ApiError."""
    if body.max_tokens == 0 and not body.echo and body.prompt_logprobs is None:
        reason = "max_tokens: 0 asks for nothing; give 1 or more, or echo or prompt_logprobs"
        raise ApiError(reason=reason, param="max_tokens", code="invalid_value")
    prompts = [_prompt(service, one, body.add_special_tokens) for one in _prompts(body)]
    most, top, grammar = body.max_tokens, body.logprobs, grammar_of(body)
    return _order(service, body, headers, tenant, prompts, most, top, grammar, echo=bool(body.echo))


def _prompts(body: CompletionBody) -> Sequence[str | Sequence[int]]:
    given: Any = body.prompt
    single = isinstance(given, str) or (given and isinstance(given[0], int))
    if not given:
        raise ApiError(reason="prompt: it is empty; give text or token ids", param="prompt")
    return [given] if single else given


def _prompt(service: Service, given: str | Sequence[int], special: bool) -> _Prompt:
    if isinstance(given, str):
        return _Prompt(tuple(service.tokenizer.encode(given, add_special_tokens=special)), given, "prompt")
    return _Prompt(tuple(given), None, "prompt")


def _order(
    service: Service,
    body: SamplingBody,
    headers: Mapping[str, str],
    tenant: str,
    prompts: Sequence[_Prompt],
    most: int | None,
    top: int | None,
    grammar: Grammar | None,
    *,
    echo: bool = False,
) -> Order:
    wanted, fields, n = service.settings.server, osd_fields(body.osd, headers), body.n or 1
    check_model(service, body.model)
    if n > wanted.max_choices:
        reason = f"n: {n} is too large; this server gives {wanted.max_choices} choices at most (server.max_choices)"
        raise ApiError(reason=reason, param="n")
    if (count := n * len(prompts)) > wanted.queue:
        reason = f"{len(prompts)} prompts with n = {n} are {count} requests, and {wanted.queue} may wait (server.queue)"
        raise ApiError(reason=f"prompt: {reason}; send fewer at a time", param="prompt")
    field = "top_logprobs" if isinstance(body, ChatBody) else "logprobs"
    for name, asked in ((field, top), ("prompt_logprobs", body.prompt_logprobs)):
        if asked is not None and asked > wanted.max_logprobs:
            reason = f"{name}: {wanted.max_logprobs} tokens at most, not {asked} (server.max_logprobs)"
            raise ApiError(reason=reason, param=name)
    scored = _prompt_logprobs(body, echo, most, top)
    requests = [
        _request(service, body, fields, tenant, prompt, _room(service, prompt, most), i, scored, grammar)
        for prompt in prompts for i in range(n)
    ]  # fmt: skip
    return Order(
        requests, len(prompts), top, echo, body.prompt_logprobs,
        _seconds(wanted.deadline_ms, fields.deadline_ms), fields.metrics or wanted.metrics,
        bool(body.stream), bool(body.stream_options and body.stream_options.include_usage),
    )  # fmt: skip


def _prompt_logprobs(body: SamplingBody, echo: bool, most: int | None, top: int | None) -> int | None:
    """Return how many likeliest tokens the engine is asked for at each token of the prompt; None for none at all."""
    echoed = (top or 0) if echo and (top is not None or most == 0) else None
    return max((count for count in (body.prompt_logprobs, echoed) if count is not None), default=None)


def check_model(service: Service, model: str | None) -> None:
    """Raise UnknownModel for any but the served model."""
    if model is not None and model != service.model:
        raise UnknownModel(model=model, known=service.model, param="model")


def _room(service: Service, prompt: _Prompt, most: int | None) -> int:
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


def _request(
    service: Service,
    body: SamplingBody,
    fields: OsdFields,
    tenant: str,
    prompt: _Prompt,
    most: int,
    number: int,
    prompt_logprobs: int | None,
    grammar: Grammar | None,
) -> Request:
    if fields.gamma is not None and fields.gamma > service.facts.gamma_max:
        reason = f"osd.gamma: {service.facts.gamma_max} at most (gamma.max)"
        raise ApiError(reason=reason, param="osd.gamma")
    request = Request(
        prompt.tokens,
        max_new_tokens=most,
        sampling=body.sampling(number, service.facts.temperature),
        stop=_stop(service, body),
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        min_tokens=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        route=fields.route,
        tenant=tenant,
        learn=service.settings.server.learn and fields.learn is not False,
        text=prompt.text,
        language=fields.language,
        gamma=fields.gamma,
        grammar=grammar,
        prompt_logprobs=prompt_logprobs,
    )
    check_request(request, service, service.facts.limit)
    return request


def _stop(service: Service, body: SamplingBody) -> tuple[str, ...]:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stops) > (most := service.settings.server.max_stop):
        raise ApiError(reason=f"stop: {most} strings at most (server.max_stop), not {len(stops)}", param="stop")
    return tuple(dict.fromkeys((*stops, *service.facts.stops)))


def _seconds(ours: int | None, theirs: int | None) -> float | None:
    given = [ms for ms in (ours, theirs) if ms is not None]
    return min(given) / 1000 if given else None
