"""The bodies that clients send. An unsupported field is refused unless it changes nothing."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from osd.server.errors import ApiError
from osd.server.http.messages import Message, NamedTool, Tool
from osd.server.http.neutral import check_extra, refused
from osd.server.http.sampling_fields import SamplingFields, Tokens
from osd.server.http.structured import StructuredFields

Count = Annotated[int, Field(ge=0, le=1 << 31)]
Detail: TypeAlias = Literal["off", "summary", "detailed"]


class RequestBody(BaseModel):
    """The base of all bodies: closed, but for fields that ask for nothing."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_half_characters(cls, given: Any) -> Any:
        """Refuse half a surrogate pair, which JSON can spell but is no text."""
        try:
            json.dumps(given, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise PydanticCustomError("invalid_value", "it has half a surrogate pair, which is no character") from None
        return given

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, given: Any) -> Any:
        """Read null as a field that is left out."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None or name not in cls.model_fields}

    @model_validator(mode="after")
    def _refuse_what_would_be_ignored(self) -> RequestBody:
        for name, value in (self.model_extra or {}).items():
            check_extra(name, value, self._hint(name))
        return self

    def _hint(self, name: str) -> str:
        near = difflib.get_close_matches(name, type(self).model_fields, n=1)
        return f"; did you mean {near[0]}?" if near else ""


class OsdFields(BaseModel):
    """osd's own fields; each is a header too (`X-OSD-Deadline-Ms`), which the body overrides."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    route: str | None = Field(default=None, max_length=200)
    """Route requested by name; else the router chooses."""
    learn: bool | None = None
    """False stores nothing of this request."""
    gamma: int | None = Field(default=None, ge=0)
    """Draft length for every round; 0 does not speculate."""
    deadline_ms: int | None = Field(default=None, ge=1, le=86_400_000)
    """End with an error if it is not finished by then."""
    language: str | None = Field(default=None, max_length=8)
    """The prompt's language, ISO 639, for the router."""
    metrics: Detail | None = None
    """`summary` or `detailed` adds `metrics.speculative_decoding` to the answer."""


def osd_fields(own: OsdFields, headers: Mapping[str, str]) -> OsdFields:
    """Return osd's own fields: the body's, and from headers those that it does not give. Raises ApiError."""
    said = {
        name: value for name in OsdFields.model_fields
        if (value := headers.get(f"x-osd-{name.replace('_', '-')}")) is not None
    }  # fmt: skip
    if not said:
        return own
    try:
        return OsdFields(**{**said, **own.model_dump(exclude_none=True)})
    except ValidationError as error:
        problem = error.errors()[0]
        name = "X-OSD-" + str(problem["loc"][0]).replace("_", "-").title()
        raise ApiError(reason=f"{name}: {problem['msg']}", param=name) from None


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    include_usage: bool | None = None
    """Whether a last chunk gives the numbers of tokens."""
    continuous_usage_stats: Literal[False] | None = None
    """osd counts at the end only."""


class SamplingBody(RequestBody, SamplingFields, StructuredFields):
    """The fields that completions and chats share."""

    model: str | None = None
    """The name at /v1/models; may be left out."""
    n: int | None = Field(default=1, ge=1)
    """Number of answers to each prompt."""
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    prompt_logprobs: Count | None = None
    """Return the log-probabilities of the prompt's tokens, and of so many of the likeliest at each."""
    osd: OsdFields = OsdFields()


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


class TokenizeBody(ChatFields):
    """The body of POST /tokenize: a text, or a chat as the model sees it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)


class DetokenizeBody(RequestBody):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: Tokens
