"""The fields of bodies that clients send. An unsupported field is refused unless it changes nothing."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from osd.server.errors import ApiError
from osd.server.http.neutral import check_extra
from osd.server.http.structured import StructuredFields
from storage.sampling import Sampling

Count = Annotated[int, Field(ge=0, le=1 << 31)]
Tokens = list[Count]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Penalty = Annotated[Finite, Field(ge=-2, le=2)]
Detail: TypeAlias = Literal["off", "summary", "detailed"]
SEEDS = 1 << 64


def require_whole_characters(given: Any) -> None:
    """Refuse half a surrogate pair, which JSON can spell but is no text."""
    try:
        json.dumps(given, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("invalid_value", "it has half a surrogate pair, which is no character") from None


class RequestBody(BaseModel):
    """The base of all bodies: closed, but for fields that ask for nothing."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_half_characters(cls, given: Any) -> Any:
        require_whole_characters(given)
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


class SamplingFields(BaseModel):
    """How tokens are chosen and where the answer ends, with vLLM's names and ranges. What is left out, or null, is the
    model's own: see `serve.generation_config`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    temperature: Finite | None = Field(default=None, ge=0, le=2)
    """Default: the model's own, or 1."""
    top_p: Finite | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    """Keep the k likeliest tokens; 0 and -1 keep all."""
    min_p: Finite | None = Field(default=None, ge=0, le=1)
    """Keep tokens at least so likely as this part of the likeliest one."""
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    repetition_penalty: Finite | None = Field(default=None, gt=0)
    """Above 1, tokens that the prompt or the answer has become less likely."""
    presence_penalty: Penalty | None = 0.0
    """Subtracted from the logits of tokens that the answer has."""
    frequency_penalty: Penalty | None = 0.0
    """Subtracted from a token's logit for each time that the answer has it."""
    logit_bias: dict[int, Annotated[Finite, Field(ge=-100, le=100)]] | None = None
    """Added to the logits of these token ids."""
    bad_words: list[str] | None = None
    """Words that do not come."""
    allowed_token_ids: Tokens | None = None
    """The only tokens that come."""
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool | None = False
    """Whether the answer ends with the stop string."""
    skip_special_tokens: bool | None = True
    """Whether special tokens are left out of the text."""
    stop_token_ids: Tokens | None = None
    """End with one of these tokens too."""
    min_tokens: int | None = Field(default=0, ge=0)
    """Tokens before which the answer does not end."""
    ignore_eos: bool | None = False
    """Continue past the end token."""

    def sampling(self, number: int, temperature: float) -> Sampling:
        """Return the sampling of choice ``number``; each choice of a seeded call has a seed of its own.
        ``temperature``: the default one."""
        return Sampling(
            temperature=temperature if self.temperature is None else self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=None if self.seed is None else (self.seed + number) % SEEDS,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=self.logit_bias or {},
            bad_words=tuple(self.bad_words or ()),
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
        )


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

    @property
    def structured(self) -> bool:
        """Whether the answer must match something."""
        return any(getattr(self, name) is not None for name in StructuredFields.model_fields)
