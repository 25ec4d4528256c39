"""The base of the applications of both ports: errors in OpenAI's shape, GET /metrics, and the guard before all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from osd.server.errors import INVALID, ApiError, InternalError, as_api_error, invalid_field
from osd.server.http.guard import Guard
from storage.distribution import osd_version
from storage.errors import OsdError

CODES = {400: "invalid_json", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


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
    """A completion or a chat completion, for the OpenAPI document: they differ in their choices only."""

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
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
metrics = APIRouter()


@metrics.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def show_metrics(http: Request) -> Response:
    """Return Prometheus metrics: vLLM's four counters of speculative decoding under their names, and osd_* beside
    them."""
    text: bytes = await http.app.state.service.measure()
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def bare_app(title: str, service: Any, scopes: Mapping[str, str], *routers: APIRouter, **state: Any) -> FastAPI:
    """Return an application with these routes, and /metrics, behind the guard. ``service`` and ``state``: what is
    behind its routes; ``scopes``: see :class:`Guard`."""
    app = FastAPI(title=title, version=osd_version(), docs_url=None, redoc_url=None)
    app.state = State({"service": service, **state})
    app.add_exception_handler(OsdError, _osd_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    for router in (*routers, metrics):
        app.include_router(router)
    limit = service.settings.server.max_body_bytes
    app.add_middleware(Guard, ring=service.ring, meters=service.meters, scopes=scopes, limit=limit)
    return app


def let_pages_ask(app: FastAPI, origins: tuple[str, ...]) -> FastAPI:
    """Let pages of these origins ask an application from a browser (``server.cors_origins``)."""
    if origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])
    return app


def _answer(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body(), error.status, error.headers)


async def _osd_error(http: Request, error: Any) -> JSONResponse:
    return _answer(as_api_error(error))


async def _bug(http: Request, error: Any) -> JSONResponse:
    """Answer an unexpected error; the log has the details."""
    return _answer(InternalError())


async def _validation_error(http: Request, error: Any) -> JSONResponse:
    """Answer with the first validation error, without the given value, which may be somebody's prompt."""
    problem = error.errors()[0]
    if problem["type"] == "json_invalid":
        reason = f"The body is not JSON: {problem.get('ctx', {}).get('error', 'it cannot be read')}."
        return _answer(ApiError(reason=reason, code="invalid_json"))
    return _answer(invalid_field(problem, problem["loc"][1:]))


async def _http_error(http: Request, error: Any) -> JSONResponse:
    """Answer Starlette's own errors: no such path, no such method, an unreadable body."""
    body = {"message": error.detail, "type": INVALID, "param": None, "code": CODES.get(error.status_code)}
    return JSONResponse({"error": body}, error.status_code, error.headers)
