"""Jobs, pieces and errors as JSON has them, for :mod:`osd.server.process.link`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from osd.server.http import errors
from osd.server.http.errors import ApiError
from osd.server.http.scores import Scores
from osd.server.process.job import Job
from osd.server.process.piece import Done, Piece
from osd.server.process.served import Served
from storage.records import Request, Sampling

ERRORS: dict[str, type[ApiError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ApiError)
}


def packed_job(job: Job) -> list[Any]:
    """For :func:`served_of`."""
    return [_shallow(job.request) | {"sampling": _shallow(job.request.sampling)}, job.pause, job.top]


def served_of(packed: list[Any]) -> Served:
    """What :func:`packed_job` made, where it is decoded."""
    said, pause, top = packed
    tokens, stop, sampling = tuple(said["prompt_tokens"]), tuple(said["stop"]), Sampling(**said["sampling"])
    request = Request(**{**said, "prompt_tokens": tokens, "stop": stop, "sampling": sampling})
    return Served(request, pause, top)


def packed_piece(piece: Piece) -> list[Any]:
    """For :func:`piece_of`."""
    return [*piece[:-1], packed_error(piece.error)]


def piece_of(packed: list[Any]) -> Piece:
    """What :func:`packed_piece` made."""
    tokens, scores, version, route, done, error = packed
    if done:
        length, text, reason, by, steps = done
        done = Done(length, text, reason, by, tuple((drafted, accepted) for drafted, accepted in steps))
    return Piece(tuple(tokens), Scores(*scores) if scores else None, version, route, done, error_of(error))


def packed_error(error: ApiError | None) -> list[Any] | None:
    """For :func:`error_of`."""
    return None if error is None else [type(error).__name__, error.status, error.facts]


def error_of(packed: list[Any] | None) -> ApiError | None:
    """What :func:`packed_error` made."""
    if packed is None:
        return None
    name, status, facts = packed
    error = ERRORS[name](**facts)
    if error.status != status:
        error.status = status  # type: ignore[misc]  # as errors.other does
    return error


def _shallow(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}
