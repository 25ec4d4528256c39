"""The bodies of chats: messages, tools, and how they are rendered."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from osd.server.http.neutral import refused
from osd.server.http.protocol import Count, RequestBody, SamplingBody

Json: TypeAlias = dict[str, Any]


class TextPart(BaseModel):
    """A text part of a message."""

    type: Literal["text"]
    text: str


class CalledFunction(BaseModel):
    """The function of a call, and what it is called with."""

    name: str
    arguments: str | Json = ""
    """A JSON object, or its text; empty: no argument."""

    @field_validator("arguments")
    @classmethod
    def _read_object(cls, given: str | Json) -> Json:
        """Return the object, which is what templates want."""
        try:
            read = json.loads(given or "{}") if isinstance(given, str) else given
        except ValueError:
            read = None
        if not isinstance(read, dict):
            raise PydanticCustomError("invalid_value", "it is not the text of a JSON object")
        return read


class ToolCall(BaseModel):
    """A call of a tool by the assistant."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(BaseModel):
    """A message of a chat. Other fields than these are given to the chat template, which must read them."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _refuse_what_is_no_text(cls, given: Any) -> Any:
        for part in given if isinstance(given, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                raise refused("unsupported_parameter", kind, "osd reads text only")
        return given

    @property
    def text(self) -> str:
        """The content, parts joined."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    def facts(self) -> Json:
        """Return the message as templates know it: without what asks for nothing."""
        given = self.model_dump(exclude_none=True)
        return {name: value for name, value in given.items() if name == "content" or value not in ([], {}, "")}


class Function(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    name: str = Field(min_length=1)
    parameters: Json | None = None
    """The JSON schema of its arguments."""
    strict: bool | None = None
    """Whether arguments match the schema, as they do where a call is forced."""


class Tool(BaseModel):
    """A tool that the model may call."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: Function


class NamedFunction(BaseModel):
    """The name of a function."""

    name: str


class NamedTool(BaseModel):
    """The one tool that is to be called."""

    type: Literal["function"] = "function"
    function: NamedFunction


class ChatFields(RequestBody):
    """The fields that say how a chat is rendered."""

    tools: list[Tool] | None = None
    """Functions that the model may call."""
    add_generation_prompt: bool = True
    """Whether the assistant's next message is begun."""
    continue_final_message: bool = False
    """Whether the last message is left open, to be continued; needs add_generation_prompt to be false."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its own special tokens. By default it does to a prompt, and not to a chat, whose
    template does."""
    documents: list[dict[str, Any]] | None = None
    """Documents for templates that show them."""
    chat_template_kwargs: dict[str, Any] | None = None
    """The chat template's own variables, such as `enable_thinking`."""
    reasoning_effort: str | None = None
    """For templates that read it, or `enable_thinking`."""

    @model_validator(mode="after")
    def _refuse_two_ends(self) -> ChatFields:
        if self.continue_final_message and self.add_generation_prompt:
            reason = "a message is either continued or begun; set add_generation_prompt to false"
            raise refused("invalid_value", "continue_final_message", reason)
        return self


class ChatBody(SamplingBody, ChatFields):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Overrides max_tokens."""
    logprobs: bool | None = False
    top_logprobs: Count | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    """`auto`, the default where there are tools, reads calls out of the answer; `none` leaves them in its text;
    `required` or a function's name forces calls, whose arguments match the tool's schema."""
    parallel_tool_calls: bool | None = True
    """False keeps the first call of an answer only."""
