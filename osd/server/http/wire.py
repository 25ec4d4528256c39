"""The bodies that clients send. An unsupported field is refused unless it changes nothing."""

from __future__ import annotations

import difflib
import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "repetition_penalty": (1,), "logit_bias": ({},),
    "response_format": ({"type": "text"},), "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],),
    "function_call": ("none", "auto"), "best_of": (1,), "echo": (False,), "suffix": ("",), "modalities": (["text"],),
    "min_p": (0,), "min_tokens": (0,), "stop_token_ids": ([],), "store": (False,), "reasoning_effort": ("none",),
}  # fmt: skip
"""Fields of OpenAI's and vLLM's that osd lacks, with the values that ask for nothing."""
IGNORED = {
    "user", "metadata", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "parallel_tool_calls",
}  # fmt: skip
"""Fields that change no text."""

Count = Annotated[int, Field(ge=0, le=1 << 31)]
Tokens = list[Annotated[int, Field(ge=0, le=1 << 31)]]
Finite = Annotated[float, Field(allow_inf_nan=False)]
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

    @model_validator(mode="after")
    def _refuse_what_would_be_ignored(self) -> RequestBody:
        for name, value in (self.model_extra or {}).items():
            if name in IGNORED or (name in NEUTRAL and (value is None or value in NEUTRAL[name])):
                continue
            if name in NEUTRAL:
                raise _wrong("unsupported_parameter", name, f"osd has no {name}; leave it out")
            raise _wrong("unknown_parameter", name, f"there is no such parameter{self._hint(name)}")
        return self

    def _hint(self, name: str) -> str:
        near = difflib.get_close_matches(name, type(self).model_fields, n=1)
        return f"; did you mean {near[0]}?" if near else ""


def _wrong(code: str, name: str, reason: str) -> PydanticCustomError:
    return PydanticCustomError(code, "{param}: {reason}", {"param": name, "reason": reason})


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


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    include_usage: bool | None = None
    """Whether a last chunk gives the numbers of tokens."""


class SamplingBody(RequestBody):
    """The fields that completions and chats share."""

    model: str | None = None
    """The name at /v1/models; may be left out."""
    n: int | None = Field(default=1, ge=1)
    """Number of answers to each prompt."""
    temperature: Finite | None = Field(default=1.0, ge=0, le=2)
    top_p: Finite | None = Field(default=1.0, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    """Keep the k likeliest tokens; 0 and -1 keep all."""
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = False
    """Continue past the end token."""
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


class TextPart(BaseModel):
    """A text part of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """The content, parts joined."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatBody(SamplingBody):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Overrides max_tokens."""
    logprobs: bool | None = False
    top_logprobs: Count | None = None


class TokenizeBody(RequestBody):
    """The body of POST /tokenize: a text, or a chat as the model sees it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    add_special_tokens: bool = True
    add_generation_prompt: bool = True


class DetokenizeBody(RequestBody):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: Tokens
