"""Conversations that somebody has: JSON lines of prompts and responses, or of OpenAI's requests and answers.

    {"prompt": "…", "response": "…"}                                  or "completion", "answer", "output"
    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"request": {"messages" or "prompt": …}, "response": {"choices": [{"message": {"content": "…"}}]}}

A target then reads each answer once, and what it would have said at every position is learned from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from osd.attached.passes import Scorer
from osd.chat_template import Chat, ChatTemplate
from osd.prompts import broken, encode, read_lines
from osd.recording.topk import TopKLogprobs
from storage.errors import BadPromptFile, BadRequest
from storage.records import DEFAULT_TENANT, RequestSamples, TokenKind, now

SAID = ("response", "completion", "answer", "output")
"""Fields that hold a response's text."""
Progress = Callable[[int, int], None]
"""Called after each conversation with those taken and those left out so far."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt and what was answered."""

    line: int
    messages: Sequence[Mapping[str, Any]] | None
    """The prompt as a chat; None where it is text."""
    prompt: str
    response: str
    tenant: str


def read_conversations(path: Path) -> Iterator[Conversation | BadPromptFile]:
    """Yield the conversations of a .jsonl or .jsonl.gz file; a line that is none comes out as its error.

    Raises BadPromptFile when the file cannot be read at all.
    """
    return read_lines(path, _read)


def _read(path: Path, number: int, line: bytes) -> Conversation | BadPromptFile:
    try:
        fields = json.loads(line)
    except ValueError as error:
        return broken(path, number, f"is not JSON: {error}")
    if not isinstance(fields, dict):
        return broken(path, number, "is not a JSON object")
    asked = fields["request"] if isinstance(fields.get("request"), dict) else fields
    messages, prompt, response = asked.get("messages"), asked.get("prompt"), _response(fields)
    if isinstance(messages, list) and response is None and messages and _role(messages[-1]) == "assistant":
        messages, response = messages[:-1], _content(messages[-1])
    if not (isinstance(messages, list) and messages and all(map(_role, messages))) and not _text(prompt):
        return broken(path, number, 'has neither "messages" nor a "prompt" with text in it')
    if response is None:
        return broken(path, number, 'has no "response", and its last message is not the assistant\'s')
    tenant = str(fields.get("tenant") or DEFAULT_TENANT)
    return Conversation(number, messages if isinstance(messages, list) else None, prompt or "", response, tenant)


def _response(fields: Mapping[str, Any]) -> str | None:
    """Return what was answered: text, or the first choice of an answer of OpenAI's API; None where there is nothing."""
    said = next((fields[name] for name in SAID if fields.get(name)), None)
    if isinstance(said, dict):
        choices = said.get("choices")
        first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        said = first.get("text") or _content(first.get("message"))
    return _text(said)


def _content(message: Any) -> str | None:
    return _text(message.get("content")) if isinstance(message, dict) else None


def _role(message: Any) -> str | None:
    return _text(message.get("role")) if isinstance(message, dict) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def tokens_of(tokenizer: Any, conversation: Conversation) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens of the prompt, in the target's chat template, and of the response. Raises BadRequest."""
    if conversation.messages is None:
        prompt = encode(tokenizer, conversation.prompt)
    else:
        framed = ChatTemplate(tokenizer).render(Chat([dict(message) for message in conversation.messages]))
        prompt = tuple(tokenizer.encode(framed, add_special_tokens=False))
    return prompt, tuple(tokenizer.encode(conversation.response, add_special_tokens=False))


def samples_of_conversation(
    conversation: Conversation, prompt: Sequence[int], response: Sequence[int], scored: TopKLogprobs, *,
    route: str, version: str, target: str | None,
) -> RequestSamples:  # fmt: skip
    """Make samples of a conversation: every position of the response, none of which anybody drafted.

    Its id follows from its tokens, so that a file that is taken in twice changes nothing.
    """
    tokens, count = np.array([*prompt, *response], np.int32), len(response)
    return RequestSamples(
        request_id=hashlib.sha256(tokens.tobytes()).hexdigest()[:32], route=route, tenant=conversation.tenant,
        draft_version=version, created_at=now(), prompt_len=len(prompt), tokens=tokens,
        positions=np.arange(len(prompt), len(tokens), dtype=np.int32),
        kinds=np.full(count, TokenKind.UNDRAFTED, np.uint8), drafted=tokens[len(prompt) :], topk_ids=scored.ids,
        topk_logprobs=scored.logprobs.astype(np.float16), outside=scored.outside,
        acceptance=np.full(count, np.nan, np.float16), target=target,
    )  # fmt: skip


def score_conversations(
    path: Path, tokenizer: Any, scorer: Scorer, *, route: str, version: str, hidden: bool = False
) -> Iterator[RequestSamples | BadPromptFile]:
    """Yield the samples of each conversation of a file, with ``hidden`` the target's hidden states too, or why a line
    gives none."""
    for conversation in read_conversations(path):
        if isinstance(conversation, BadPromptFile):
            yield conversation
            continue
        try:
            prompt, response = tokens_of(tokenizer, conversation)
        except BadRequest as error:
            yield broken(path, conversation.line, str(error))
            continue
        if not prompt or not response or len(prompt) + len(response) > scorer.length:
            reason = f"has {len(prompt) + len(response)} tokens, and {scorer.length} can be read"
            yield broken(path, conversation.line, reason)
            continue
        text = [*prompt, *response]
        scored, states = scorer.with_states(text, len(prompt)) if hidden else (scorer(text, len(prompt)), None)
        samples = samples_of_conversation(
            conversation, prompt, response, scored, route=route, version=version, target=scorer.target
        )
        yield replace(samples, hidden_states=states) if hidden else samples
