"""The rows that people have, in OpenAI's names: chats, logged calls, ShareGPT's turns, token ids.

{"prompt": "…", "response": "…"}                                  or "completion", "answer", "output"; text or ids
{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}], "tools": […]}
{"request": {"messages" or "prompt": …}, "response": {"choices": [{"message": {"content": "…"}}]}}
{"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}], "system": "…", "tools": "[…]"}
{"prompt_token_ids": […], "token_ids": […]}                       as vLLM returns them, in a response too
{"input_ids": […], "labels": […]}                                 or "loss_mask", "assistant_masks"
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, TypeAlias

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictInt, model_validator

from osd.chat_template import REASONING
from osd.server.http.chat_protocol import ChatBody, Json, Message
from osd.server.http.completions import CompletionBody
from osd.server.http.neutral import NEUTRAL
from osd.server.http.protocol import require_whole_characters
from storage.errors import BadRequest
from storage.records import DEFAULT_TENANT, EVERYBODY

Turns: TypeAlias = Literal["last", "all"]
Ids: TypeAlias = list[StrictInt]

ASKED = ChatBody.model_fields.keys() | CompletionBody.model_fields.keys() | NEUTRAL.keys()
"""Fields of a row without ``request`` that belong to the request; others are the row's own."""
ROLES = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant",
    "model": "assistant", "function_call": "assistant", "observation": "tool", "function_response": "tool",
}  # fmt: skip
"""Roles of ShareGPT's turns that OpenAI's API calls otherwise."""
UNLEARNED = -100
"""The label of a token that nothing is learned of."""


class AnswerMessage(Message):
    """The message of an answer."""

    role: Literal["assistant"] = "assistant"

    @property
    def is_plain(self) -> bool:
        """Whether it is a text and nothing else: neither reasoning nor calls of tools."""
        return not self.facts().keys() - {"role", "content", "name"}


class LoggedChoice(BaseModel):
    """One answer, as OpenAI's API gives it."""

    index: int | None = Field(default=None, ge=0)
    text: str | None = None
    message: AnswerMessage | None = None
    token_ids: Ids | None = None
    """vLLM's: the tokens, where they were asked for."""
    finish_reason: str | None = None
    stop_reason: StrictInt | str | None = None
    """vLLM's: the string or token that ended it, null for an end token."""


class ApiAnswer(BaseModel):
    """The answers to one request."""

    choices: list[LoggedChoice] = Field(min_length=1)
    prompt_token_ids: Ids | None = None
    """vLLM's: the tokens of a chat."""


class Row(BaseModel):
    """One row of a file."""

    model_config = ConfigDict(extra="allow")

    request: Json | None = None
    prompt: Any = Field(default=None, validation_alias=AliasChoices("prompt", "prompt_token_ids"))
    context: str | None = None
    response: ApiAnswer | str | Ids | None = Field(
        default=None, validation_alias=AliasChoices("response", "completion", "answer", "output", "token_ids")
    )
    finish_reason: str | None = None
    tenant: str = Field(default=DEFAULT_TENANT, pattern=rf"^[^\x00]*[^\s\x00{EVERYBODY}][^\x00]*$")
    input_ids: Ids | None = None
    labels: Ids | None = None
    learned: list[bool] | None = Field(default=None, validation_alias=AliasChoices("loss_mask", "assistant_masks"))
    """Which of ``input_ids`` were answered, where no ``labels`` say so."""

    @model_validator(mode="before")
    @classmethod
    def _read_forms(cls, given: Any) -> Any:
        require_whole_characters(given)
        if not isinstance(given, dict):
            return given
        row = {name: value for name, value in given.items() if value is not None}
        return _as_chat(row) if {"conversations", "conversation"} & row.keys() else row

    def runs(self, ids: Ids) -> Iterator[tuple[Ids, Ids]]:
        """Yield the tokens before each run of answered tokens, and the run. Raises BadRequest."""
        learned = [label != UNLEARNED for label in self.labels] if self.labels else self.learned
        if learned is None or len(learned) != len(ids) or True not in learned:
            reason = "labels, loss_mask or assistant_masks, as long as it, must say which tokens were answered"
            raise BadRequest(field="input_ids", reason=reason)
        end = 0
        for answered, run in groupby(learned):
            begin, end = end, end + len(list(run))
            if answered:
                yield ids[:begin], ids[begin:end]


def answered_turns(messages: Any) -> list[tuple[Sequence[Json], Json]]:
    """Return the messages before each of the assistant's that is learned, and that message. Raises BadRequest."""
    told = [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
    plain = [{name: value for name, value in one.items() if name != "weight"} for one in told]
    learned = [one.get("role") == "assistant" and one.get("weight") != 0 for one in told]
    turns: list[tuple[Sequence[Json], Json]]
    turns = [(plain[:place], plain[place]) for place in range(1, len(told)) if learned[place]]
    if not turns:
        raise BadRequest(field="response", reason="there is none, and no message behind another is the assistant's")
    return turns


def _as_chat(row: Json) -> Json:
    """Return a row of ShareGPT's turns with messages in their place, and tools as OpenAI's API has them. Raises
    BadRequest for turns that are no list."""
    named = "conversations" if "conversations" in row else "conversation"
    turns, system, tools = row[named], row.get("system"), row.get("tools")
    if isinstance(turns, dict):  # columns, as `datasets` keeps sequences of tables
        turns = [dict(zip(turns, values, strict=True)) for values in zip(*turns.values(), strict=True)]
    if not isinstance(turns, list):
        raise BadRequest(field=named, reason="it is no list of turns")
    first = [{"role": "system", "content": system}] if system else []
    listed = json.loads(tools or "[]") if isinstance(tools, str) else tools or []
    tools = [one if "function" in one else {"type": "function", "function": one} for one in listed]
    rest = {name: value for name, value in row.items() if name not in (named, "system")}
    return rest | {"messages": [*first, *map(_as_message, turns)], "tools": tools}


def _as_message(turn: Any) -> Any:
    if not isinstance(turn, dict):
        return turn
    role: Any = turn.get("from", turn.get("role"))
    said: Any = turn.get("value", turn.get("content"))
    if role == "function_call":
        calls = json.loads(said)
        calls = [{"function": one} for one in (calls if isinstance(calls, list) else [calls])]
        return {"role": "assistant", "tool_calls": calls}
    known = {name: turn[name] for name in (*Message.model_fields, *REASONING, "weight") if turn.get(name) is not None}
    return known | {"role": ROLES.get(role, role), "content": said}
