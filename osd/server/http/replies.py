"""The schemas of answers, for the OpenAPI document. Chats and completions differ in their choices only."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ErrorFacts(BaseModel):
    """The description of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The body of an error."""

    error: ErrorFacts


class Usage(BaseModel):
    """The numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnswerReply(BaseModel):
    """A completion or a chat completion."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str | None
    """The draft version that last served the call."""
    choices: list[dict[str, Any]]
    usage: Usage
    osd: dict[str, Any]
    metrics: dict[str, Any] | None = None


class ModelCard(BaseModel):
    """A served model."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "osd"
    max_model_len: int
    """Maximum tokens of prompt and output together."""


class ModelsReply(BaseModel):
    """The answer of GET /v1/models."""

    object: str = "list"
    data: list[ModelCard]


class TokenizeReply(BaseModel):
    """The answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeReply(BaseModel):
    """The answer of POST /detokenize."""

    prompt: str


class StatusReply(BaseModel):
    """The answer of GET /health and /ready."""

    status: str


class VersionReply(BaseModel):
    """The answer of GET /version."""

    version: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": what}
    for status, what in {
        400: "The request cannot be served as it is", 401: "No valid key", 403: "The key may not do this",
        404: "No such thing", 405: "No such method", 408: "Not finished before the request's own deadline",
        413: "The body is too large", 429: "Too much at a time", 500: "Decoding failed", 503: "Draining",
    }.items()
}  # fmt: skip
