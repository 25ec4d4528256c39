"""Errors of a call, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from storage.errors import BadInput, BadRequest, NotFound, OsdError, StoreError, UnknownRoute, WrongState

INVALID, SERVER = "invalid_request_error", "server_error"


class ApiError(BadInput):
    """{reason}"""

    status: ClassVar[int] = 400
    type: ClassVar[str] = INVALID
    code: ClassVar[str | None] = None

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of the answer."""
        wait = self.facts.get("retry_after")
        return {} if wait is None else {"Retry-After": str(max(1, round(wait)))}

    def body(self) -> dict[str, Any]:
        """Return the body of the answer."""
        code = self.facts.get("code", self.code)
        return {"error": {"message": str(self), "type": self.type, "param": self.facts.get("param"), "code": code}}

    def event(self) -> str:
        """Return it as a server-sent event, for a stream whose status was sent."""
        return f"data: {json.dumps(self.body(), ensure_ascii=False)}\n\n"


class BodyTooLarge(ApiError):
    """The body is larger than {limit} bytes (server.max_body_bytes)."""

    status, code = 413, "request_too_large"


class BadKey(ApiError):
    """{reason}"""

    status, code = 401, "invalid_api_key"

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of the answer."""
        return {"WWW-Authenticate": "Bearer"}


class NotAllowed(ApiError):
    """{reason}"""

    status, type, code = 403, "permission_error", "insufficient_permissions"


class UnknownModel(ApiError):
    """There is no model {model!r} here; the one that is served is {known!r}."""

    status, code = 404, "model_not_found"


class ContextOverflow(ApiError):
    """{reason}"""

    code = "context_length_exceeded"


class Busy(ApiError):
    """{reason}"""

    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"


class Draining(ApiError):
    """The server is about to stop and takes no new requests."""

    status, type, code = 503, SERVER, "draining"


class DeadlineExceeded(ApiError):
    """The request was not finished before its deadline, which it had set itself: no fault of the server's."""

    status, type, code = 408, "timeout_error", "deadline_exceeded"


class ServerStopped(ApiError):
    """The server stopped before the request was finished."""

    status, type, code = 503, SERVER, "stopped"


class TargetMoved(ApiError):
    """The target was exchanged while this request ran (POST /admin/target with requests = abort); ask again."""

    status, type, code = 503, SERVER, "target_moved"


class EngineFailed(ApiError):
    """Decoding failed; the server's log says why."""

    status, type, code = 500, SERVER, "engine_failed"


class InternalError(ApiError):
    """The server made a mistake; its log says which."""

    status, type, code = 500, SERVER, "internal_error"


class StoreFailure(ApiError):
    """{reason}"""

    type, code = SERVER, "store_error"

    @property
    def status(self) -> int:  # type: ignore[override]
        """The status, which depends on what failed."""
        return int(self.facts["status"])


def as_api_error(error: OsdError) -> ApiError:
    """Convert an error to one of the API."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BadRequest):
        return ApiError(reason=str(error), param=error.facts["field"])
    if isinstance(error, UnknownRoute):
        return ApiError(reason=str(error), param="osd.route", code="unknown_route")
    if isinstance(error, BadInput):
        return ApiError(reason=str(error))
    return other(error)


def invalid_field(problem: Mapping[str, Any], place: Iterable[str | int]) -> ApiError:
    """Convert one of pydantic's problems, without the given value, which may be somebody's prompt. ``place``: the names
    that lead to it in the body."""
    where, facts = [str(part) for part in place], problem.get("ctx", {})
    own = "param" in facts
    param = ".".join([*where, str(facts["param"])] if own else where) or None
    reason, code = (facts["reason"], problem["type"]) if own else (problem["msg"], "invalid_value")
    return ApiError(reason=f"{param or 'body'}: {reason}", param=param, code=code)


def other(error: OsdError) -> ApiError:
    """Convert an error that the caller did not cause."""
    status = 404 if isinstance(error, NotFound) else 409 if isinstance(error, WrongState) else 503
    made = StoreFailure(reason=str(error), status=status)
    if isinstance(error, NotFound):
        made.facts["code"] = "not_found"
    elif not isinstance(error, StoreError):
        made.facts["code"] = None
    return made
