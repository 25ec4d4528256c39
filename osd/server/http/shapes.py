"""The JSON of answers: completions and chats, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from osd.server.http.choice import Delta, ScoredToken
from osd.server.http.token_text import TokenText, floor

Json = dict[str, Any]


class Shape(Protocol):
    """The JSON of one kind of answer."""

    prefix: str
    """Prefix of its ids."""
    whole: str
    """`object` of a whole answer."""
    chunk: str
    """`object` of a chunk."""

    prompt_above: bool
    """Whether `prompt_logprobs` stands beside the choices, and not in each."""

    def choice(self, index: int, delta: Delta, token_text: TokenText, *, scored: bool) -> Json:
        """Return a choice of a whole answer."""
        ...

    def part(self, index: int, delta: Delta, token_text: TokenText, *, scored: bool, first: bool) -> Json:
        """Return a choice of a chunk."""
        ...


class CompletionShape:
    """The JSON of /v1/completions."""

    prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"
    prompt_above = False

    def choice(self, index: int, delta: Delta, token_text: TokenText, *, scored: bool) -> Json:
        """Return a choice of a whole answer, see :class:`Shape`."""
        logprobs = _completion_logprobs(delta.scored, token_text) if scored else None
        said = {"index": index, "text": delta.text, "logprobs": logprobs, "finish_reason": delta.finish_reason}
        return said if delta.prompt is None else {**said, "prompt_logprobs": delta.prompt}

    def part(self, index: int, delta: Delta, token_text: TokenText, *, scored: bool, first: bool) -> Json:
        """Return a choice of a chunk, see :class:`Shape`."""
        return self.choice(index, delta, token_text, scored=scored)


class ChatShape:
    """The JSON of /v1/chat/completions."""

    prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    prompt_above = True

    def choice(self, index: int, delta: Delta, token_text: TokenText, *, scored: bool) -> Json:
        """Return a choice of a whole answer, see :class:`Shape`."""
        content = delta.text or (None if delta.calls else "")
        message = {"role": "assistant", "content": content, "refusal": None, **_calls(delta)}
        return {"index": index, "message": message, **_chat_rest(delta, token_text, scored)}

    def part(self, index: int, delta: Delta, token_text: TokenText, *, scored: bool, first: bool) -> Json:
        """Return a choice of a chunk, see :class:`Shape`."""
        said = ({"role": "assistant"} if first else {}) | ({"content": delta.text} if first or delta.text else {})
        said |= _calls(delta, indexed=True)
        return {"index": index, "delta": said, **_chat_rest(delta, token_text, scored)}


def _calls(delta: Delta, *, indexed: bool = False) -> Json:
    """Return calls of tools, if there are any. A call's later parts have its index and arguments alone."""
    calls = [
        ({"index": call.index} if indexed else {})
        | ({"id": call.id, "type": "function"} if call.id else {})
        | {"function": ({"name": call.name} if call.name else {}) | {"arguments": call.arguments}}
        for call in delta.calls
    ]
    return {"tool_calls": calls} if calls else {}


def _chat_rest(delta: Delta, token_text: TokenText, scored: bool) -> Json:
    entries = [_entry(one, token_text) for one in delta.scored]
    return {"logprobs": {"content": entries, "refusal": None} if scored else None, "finish_reason": delta.finish_reason}


def _entry(one: ScoredToken, token_text: TokenText) -> Json:
    top = [_token(token, logprob, token_text) for token, logprob in one.top]
    return {**_token(one.token, one.logprob, token_text), "top_logprobs": top}


def _token(token: int, logprob: float | None, token_text: TokenText) -> Json:
    text, data = token_text(token)
    return {"token": text, "logprob": floor(logprob), "bytes": data}


def _completion_logprobs(scored: Sequence[ScoredToken], token_text: TokenText) -> Json:
    return {
        "tokens": [token_text(one.token)[0] for one in scored],
        "token_logprobs": [floor(one.logprob) for one in scored],
        "top_logprobs": [_top(one, token_text) for one in scored],
        "text_offset": [one.offset for one in scored],
    }


def _top(one: ScoredToken, token_text: TokenText) -> Json | None:
    """Return the likeliest tokens, the likeliest last; None of a prompt's first token."""
    return None if one.logprob is None else {token_text(t)[0]: floor(p) for t, p in reversed(one.top)}
