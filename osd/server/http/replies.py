"""The answers' schemas, for the OpenAPI document. Chats and completions differ in their choices only."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ErrorFacts(BaseModel):
    """What was wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """Any answer that is none."""

    error: ErrorFacts


class Usage(BaseModel):
    """Tokens."""

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
    """The draft version that served the call last."""
    choices: list[dict[str, Any]]
    usage: Usage
    osd: dict[str, Any]
    metrics: dict[str, Any] | None = None


class ModelCard(BaseModel):
    """A model."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "osd"
    max_model_len: int
    """Tokens of prompt and output together."""


class ModelsReply(BaseModel):
    """GET /v1/models."""

    object: str = "list"
    data: list[ModelCard]


class TokenizeReply(BaseModel):
    """POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeReply(BaseModel):
    """POST /detokenize."""

    prompt: str


class StatusReply(BaseModel):
    """GET /health and /ready."""

    status: str


class VersionReply(BaseModel):
    """GET /version."""

    version: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": what}
    for status, what in {
        400: "The request cannot be served as it is", 401: "No valid key", 403: "The key may not do this",
        404: "No such thing", 405: "No such method", 408: "Not finished before the request's own deadline",
        413: "The body is too large", 429: "Too much at a time", 500: "Decoding failed", 503: "Draining",
    }.items()
}  # fmt: skip
