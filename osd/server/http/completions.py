"""POST /v1/completions: a text to complete, or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from osd.server.errors import ApiError
from osd.server.http.answer import Answer, Shape
from osd.server.http.answer_parts import Delta, Json, TokenText, completion_logprobs
from osd.server.http.app import ERRORS, STREAMED, AnswerReply
from osd.server.http.order import Asked, TokensPrompt, make_order, service_of
from osd.server.http.protocol import Count, SamplingBody, Tokens
from osd.server.http.service import Service
from osd.server.http.structured import grammar_of

completion_routes = APIRouter(responses=ERRORS)


class CompletionBody(SamplingBody):
    """The body of POST /v1/completions."""

    prompt: str | Tokens | list[str] | list[Tokens]
    """Text or token ids, one prompt or several."""
    max_tokens: int | None = Field(default=16, ge=0)
    """0 only with echo or prompt_logprobs."""
    logprobs: Count | None = None
    echo: bool | None = False
    """Whether the prompt stands before the answer, with its log-probabilities where `logprobs` is given."""
    add_special_tokens: bool = True
    """Whether the tokenizer adds its own special tokens to texts."""


@completion_routes.post("/v1/completions", response_model=AnswerReply, responses=STREAMED)
async def completions(http: Request, body: CompletionBody) -> Response:
    """Complete a text, or each of several."""
    service = service_of(http)
    order = make_order(service, http, body, _asked(service, body))
    return await Answer(service, SHAPE, order, http.state.caller).respond(http)


def _asked(service: Service, body: CompletionBody) -> Asked:
    if body.max_tokens == 0 and not body.echo and body.prompt_logprobs is None:
        reason = "max_tokens: 0 asks for nothing; give 1 or more, or echo or prompt_logprobs"
        raise ApiError(reason=reason, param="max_tokens", code="invalid_value")
    grammar = grammar_of(body) if body.structured else None
    prompts = completion_prompts(service.tokenizer, body)
    return Asked(prompts, body.max_tokens, body.logprobs, "logprobs", grammar, echo=bool(body.echo))


def completion_prompts(tokenizer: Any, body: CompletionBody) -> list[TokensPrompt]:
    """Return the prompts that a body asks for. Raises ApiError."""
    given: Any = body.prompt
    if not given:
        raise ApiError(reason="prompt: it is empty; give text or token ids", param="prompt")
    prompts = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    return [_prompt(tokenizer, one, body.add_special_tokens) for one in prompts]


def _prompt(tokenizer: Any, given: str | Sequence[int], special: bool) -> TokensPrompt:
    if isinstance(given, str):
        return TokensPrompt(tuple(tokenizer.encode(given, add_special_tokens=special)), given, "prompt")
    return TokensPrompt(tuple(given), None, "prompt")


def _choice(index: int, delta: Delta, token_text: TokenText, scored: bool, first: bool = False) -> Json:
    logprobs = completion_logprobs(delta.scored, token_text) if scored else None
    said = {"index": index, "text": delta.text, "logprobs": logprobs, "finish_reason": delta.finish_reason}
    return said if delta.prompt is None else {**said, "prompt_logprobs": delta.prompt}


SHAPE = Shape("cmpl-", "text_completion", "text_completion", False, _choice, _choice)
