"""The base of every application: errors in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from osd.server.http.errors import INVALID, ApiError, InternalError, as_api_error
from storage.distribution import osd_version
from storage.errors import OsdError

CODES = {400: "invalid_json", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def bare_app(title: str, service: Any) -> FastAPI:
    """Return an application that answers errors in OpenAI's shape. ``service``: the state behind its routes."""
    app = FastAPI(title=title, version=osd_version(), docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_exception_handler(OsdError, _osd_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
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
    where, facts = [str(part) for part in problem["loc"][1:]], problem.get("ctx", {})
    own = "param" in facts
    param = ".".join([*where, str(facts["param"])] if own else where) or None
    reason, code = (facts["reason"], problem["type"]) if own else (problem["msg"], "invalid_value")
    return _answer(ApiError(reason=f"{param or 'body'}: {reason}", param=param, code=code))


async def _http_error(http: Request, error: Any) -> JSONResponse:
    """Answer Starlette's own errors: no such path, no such method, an unreadable body."""
    body = {"message": error.detail, "type": INVALID, "param": None, "code": CODES.get(error.status_code)}
    return JSONResponse({"error": body}, error.status_code, error.headers)
