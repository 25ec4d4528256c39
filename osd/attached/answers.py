"""The answers that an engine hands over, as they come over the wire."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_TOKENS = 1 << 20


class AnswerChoice(BaseModel):
    """One output of a request."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    tokens: list[int] = Field(min_length=1, max_length=MOST_TOKENS)
    top_ids: list[list[int]] = []
    """(n, k) the likeliest tokens at each position, in any order; empty where the client asked for its own."""
    top_logprobs: list[list[float]] = []
    """(n, k) their log-probabilities, before any warping."""
    finish_reason: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> AnswerChoice:
        if self.top_ids and not len(self.top_ids) == len(self.top_logprobs) == len(self.tokens):
            raise ValueError("there are not as many positions as tokens")
        if any(len(ids) != len(values) or not ids for ids, values in zip(self.top_ids, self.top_logprobs, strict=True)):
            raise ValueError("there are not as many log-probabilities as token ids")
        return self


class HarvestedAnswer(BaseModel):
    """One request that was answered."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    id: str = Field(min_length=8, max_length=64)
    prompt: list[int] = Field(min_length=1, max_length=MOST_TOKENS)
    choices: list[AnswerChoice] = Field(min_length=1)
    accepted: list[int] | None = None
    """Accepted drafted tokens of each step after the first token; None where the engine does not say."""
    drafted: list[int] | None = None
    """Drafted tokens of each step."""
    version: str | None = None
    """Digest of the weights of the draft that served when the request came."""
    version_after: str | None = None
    """The same when it was answered."""
    temperature: float | None = None
    key: str | None = None
    """SHA-256 of the API key that the client gave."""
    tenant: str | None = None
    route: str | None = None
    began: float
    ended: float

    @model_validator(mode="after")
    def _fits(self) -> HarvestedAnswer:
        if (self.accepted is None) != (self.drafted is None) or len(self.accepted or ()) != len(self.drafted or ()):
            raise ValueError("there are not as many accepted counts as drafted ones")
        if any(not 0 <= a <= d for a, d in zip(self.accepted or (), self.drafted or (), strict=True)):
            raise ValueError("a step accepted more than was drafted")
        return self


class HarvestBatch(BaseModel):
    """What an engine sends at once."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    batch: str = Field(min_length=8, max_length=64)
    """Its id: a batch is taken once, however often it is sent."""
    done: list[str] = []
    """Ids of batches that will not be sent again."""
    engine: str = Field(min_length=1, max_length=255)
    """The engine's name, as `osd engines list` shows it."""
    answers: list[HarvestedAnswer] = Field(min_length=1)
