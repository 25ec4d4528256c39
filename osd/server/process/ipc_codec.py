"""The messages of :mod:`osd.server.process.ipc` as bytes: a kind and what belongs to it in JSON, behind its length in
four bytes. Requests, outputs and errors are written as they are, and made anew from what was read."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from osd.logits import Scores
from osd.server.http import errors
from osd.server.http.errors import ApiError
from osd.server.process.jobs import Done, EngineJob, JobOutput
from storage.records import Request
from storage.sampling import Grammar, Sampling

LENGTH = struct.Struct("!I")
ERRORS: dict[str, type[ApiError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ApiError)
}


def pack_message(kind: str, what: tuple[Any, ...]) -> bytes:
    """Return a message for :func:`unpack_messages`."""
    text = _encode([kind, *what]).encode("utf-8", "surrogatepass")
    return LENGTH.pack(len(text)) + text


def unpack_messages(heard: bytearray) -> Iterator[list[Any]]:
    """Take the messages that are whole out of what was heard, the kind of each first."""
    while len(heard) >= LENGTH.size and len(heard) >= (end := LENGTH.size + LENGTH.unpack_from(heard)[0]):
        text = heard[LENGTH.size : end].decode("utf-8", "surrogatepass")
        del heard[:end]
        yield json.loads(text)


def engine_job(packed: list[Any]) -> EngineJob:
    """Make the job where it is decoded of [request, pause, top]."""
    said, pause, top = packed
    bias = {int(token): value for token, value in said["sampling"]["logit_bias"].items()}
    sampling = Sampling(**{**_with_tuples(said["sampling"]), "logit_bias": bias})
    grammar = Grammar(**said["grammar"]) if said["grammar"] else None
    return EngineJob(Request(**{**_with_tuples(said), "sampling": sampling, "grammar": grammar}), pause, top)


def _with_tuples(said: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}


def job_output(packed: list[Any]) -> JobOutput:
    """Make the output anew."""
    tokens, scores, version, route, done, error, prompt = packed
    if done:
        done = Done(*done)._replace(steps=tuple(map(tuple, done[-1])))
    scores, prompt = (Scores(*each) if each else None for each in (scores, prompt))
    return JobOutput(tuple(tokens), scores, version, route, done, api_error(error), prompt)


def api_error(packed: list[Any] | None) -> ApiError | None:
    """Make the error anew; None of None."""
    if packed is None:
        return None
    name, status, facts = packed
    error = ERRORS[name](**facts)
    if error.status != status:
        error.status = status  # type: ignore[misc]  # as errors.other does
    return error


def _plain(thing: Any) -> Any:
    """Return an error as a list, a record as a dictionary."""
    if isinstance(thing, ApiError):
        return [type(thing).__name__, thing.status, thing.facts]
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain).encode
