"""POST /v1/chat/completions: a chat as the model reads it, and the calls of tools in its answer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from osd.chat_template import Chat, ChatTemplate
from osd.server.errors import ApiError
from osd.server.http.answer import Answer, Shape
from osd.server.http.answer_parts import Delta, Json, TokenText, chat_logprobs
from osd.server.http.app import ERRORS, STREAMED, AnswerReply
from osd.server.http.chat_protocol import ChatBody, ChatFields, Message, NamedTool
from osd.server.http.order import Asked, TokensPrompt, make_order, service_of
from osd.server.http.service import Service
from osd.server.http.structured import grammar_of
from osd.server.http.tool_calls import FORMS, CallReader, hidden_tokens, tool_grammar
from storage.errors import BadRequest, BadSetting
from storage.sampling import Grammar

log = logging.getLogger(__name__)
chat_routes = APIRouter(responses=ERRORS)


@chat_routes.post("/v1/chat/completions", response_model=AnswerReply, responses=STREAMED)
async def chat_completions(http: Request, body: ChatBody) -> Response:
    """Continue a chat."""
    service = service_of(http)
    order = make_order(service, http, body, _asked(service, body))
    return await Answer(service, SHAPE, order, http.state.caller).respond(http)


def chat_prompt(template: ChatTemplate, tokenizer: Any, body: ChatBody) -> TokensPrompt:
    """Return the prompt that a body asks for. Raises ApiError, BadRequest."""
    text = chat_text(template, body, body.messages)
    tokens = tuple(tokenizer.encode(text, add_special_tokens=bool(body.add_special_tokens)))
    return TokensPrompt(tokens, last_user_text(body.messages), "messages")


def _asked(service: Service, body: ChatBody) -> Asked:
    prompt = chat_prompt(service.template, service.tokenizer, body)
    if body.top_logprobs and not body.logprobs:
        raise ApiError(reason="top_logprobs needs logprobs to be true", param="top_logprobs")
    return Asked(
        [prompt],
        body.max_completion_tokens or body.max_tokens,
        (body.top_logprobs or 0) if body.logprobs else None,
        "top_logprobs",
        grammar_of(body, forced_calls(service, body)),
        calls=calls_of(service, body),
    )


def read_template(path: Path | None, tokenizer: Any) -> str | None:
    """Return the template in a file, None without one. Either is tried: what it will refuse is logged. Raises
    BadSetting where the file cannot be read, or its template shows no message."""
    try:
        source = path.read_text(encoding="utf-8") if path else None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(f"cannot be read ({error})") from None
    template = ChatTemplate(tokenizer, source)
    for roles in TRIED if template.exists else ():
        try:
            template.render(Chat([{"role": role, "content": "osd"} for role in roles]))
        except BadRequest as error:
            if source and len(roles) == 1:
                raise _unusable(str(error)) from None
            log.warning("chats of %s will be refused: %s", ", ".join(roles), error, extra={"action": "chat_template"})
    return source


TRIED = (["user"], ["system", "user"], ["user", "assistant", "user"])
"""The roles of the chats that a template is tried with."""


def _unusable(reason: str) -> BadSetting:
    return BadSetting(source="server", key="server.chat_template", reason=reason)


def chat_text(template: ChatTemplate, body: ChatFields, messages: Sequence[Message]) -> str:
    """Return the chat as the model reads it. Raises ApiError where there is no template, BadRequest where it does not
    take the chat or would lose a part of it."""
    if not template.exists:
        reason = "the model has no chat template; use /v1/completions, or name a template with server.chat_template"
        raise ApiError(reason=reason, param="messages", code="no_chat_template")
    return template.render(Chat(
        [message.facts() for message in messages],
        [tool.model_dump(exclude_none=True) for tool in body.tools or ()] or None,
        body.documents or None,
        (body.chat_template_kwargs or {}) | _effort(template, body),
        body.add_generation_prompt,
        body.continue_final_message,
    ))  # fmt: skip


def _effort(template: ChatTemplate, body: ChatFields) -> dict[str, object]:
    """Return the variable that says how much is to be thought. Raises ApiError where the template has none."""
    effort, given = body.reasoning_effort, body.chat_template_kwargs or {}
    if effort is None:
        return {}
    if template.reads("reasoning_effort", tools=bool(body.tools)):
        return {"reasoning_effort": given.get("reasoning_effort", effort)}
    if template.reads("enable_thinking", tools=bool(body.tools)):
        return {"enable_thinking": given.get("enable_thinking", effort != "none")}
    if effort != "none":
        reason = "reasoning_effort: the chat template reads neither it nor enable_thinking; leave it out"
        raise ApiError(reason=reason, param="reasoning_effort", code="unsupported_parameter")
    return {}


def calls_of(service: Service, body: ChatBody) -> CallReader | None:
    """Return what reads calls out of each answer; None where there are no tools, or calls are left in the text. Raises
    ApiError."""
    tools, choice = body.tools or (), body.tool_choice or "auto"
    if not tools or choice == "none":
        return None
    if choice == "auto":
        if not service.settings.server.enable_auto_tool_choice:
            raise _refused("auto is off here (server.enable_auto_tool_choice); none leaves calls in the text")
        if (i := next((i for i, tool in enumerate(tools) if tool.function.strict), None)) is not None:
            reason = "arguments are held to the schema where tool_choice is required or names a function; leave it out"
            raise _refused(reason, f"tools.{i}.function.strict")
    form, names = FORMS[_form(service)], tuple(tool.function.name for tool in tools)
    shows = body.skip_special_tokens is False
    hidden = None if shows else hidden_tokens(form, service.detokenizer.special)
    return CallReader(form, names, body.parallel_tool_calls is not False, hidden)


def forced_calls(service: Service, body: ChatBody) -> Grammar | None:
    """Return the grammar of an answer that must call tools, with arguments that match their schemas; None where it need
    not. Raises ApiError."""
    choice, tools = body.tool_choice, body.tools or []
    if choice in (None, "none", "auto"):
        return None
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    if not tools:
        raise _refused("there is no such tool in tools; name one that is there")
    schemas = [(tool.function.name, {"type": "object", **(tool.function.parameters or {})}) for tool in tools]
    many = choice == "required" and body.parallel_tool_calls is not False
    return tool_grammar(schemas, _form(service), service.tokenizer, many=many, field="tools")


def _form(service: Service) -> str:
    if service.tool_call_parser is None:
        raise _refused(
            "the form of this model's calls is not known (server.tool_call_parser); none leaves them in the text"
        )
    return service.tool_call_parser


def _refused(reason: str, param: str = "tool_choice") -> ApiError:
    return ApiError(reason=f"{param}: {reason}", param=param, code="unsupported_parameter")


def last_user_text(messages: Sequence[Message]) -> str:
    """Return the newest message of the user, by which the router decides."""
    said = [message.text for message in messages if message.role == "user"]
    return said[-1] if said else messages[-1].text


def _choice(index: int, delta: Delta, token_text: TokenText, scored: bool) -> Json:
    content = delta.text or (None if delta.calls else "")
    message = {"role": "assistant", "content": content, "refusal": None, **_calls(delta)}
    return {"index": index, "message": message, **_rest(delta, token_text, scored)}


def _part(index: int, delta: Delta, token_text: TokenText, scored: bool, first: bool) -> Json:
    said = ({"role": "assistant"} if first else {}) | ({"content": delta.text} if first or delta.text else {})
    said |= _calls(delta, indexed=True)
    return {"index": index, "delta": said, **_rest(delta, token_text, scored)}


def _calls(delta: Delta, *, indexed: bool = False) -> Json:
    """Return calls of tools, if there are any. A call's later parts have its index and arguments alone."""
    calls = [
        ({"index": call.index} if indexed else {})
        | ({"id": call.id, "type": "function"} if call.id else {})
        | {"function": ({"name": call.name} if call.name else {}) | {"arguments": call.arguments}}
        for call in delta.calls
    ]
    return {"tool_calls": calls} if calls else {}


def _rest(delta: Delta, token_text: TokenText, scored: bool) -> Json:
    entries = [chat_logprobs(one, token_text) for one in delta.scored]
    return {"logprobs": {"content": entries, "refusal": None} if scored else None, "finish_reason": delta.finish_reason}


SHAPE = Shape("chatcmpl-", "chat.completion", "chat.completion.chunk", True, _choice, _part)
