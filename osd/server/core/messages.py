"""What a server's two processes say to each other about requests, and how that is written as bytes.

ClientJob  where HTTP is answered: the request and who waits for it
EngineJob  where it is decoded: the same request, and what its caller has not been told yet
JobOutput  what goes back, of one round or of several; the last one says how it ended

A message is a kind and what belongs to it in JSON, behind its length in four bytes. Requests, outputs and errors are
written as they are, and made anew from what was read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from osd.logits import Scores
from osd.sequence import Completion, SequenceState
from osd.server import errors
from osd.server.errors import ApiError
from osd.verification.grammar import CompiledGrammar
from storage.records import Request
from storage.sampling import Grammar, Sampling

LENGTH = struct.Struct("!I")
ERRORS: dict[str, type[ApiError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ApiError)
}


class JobOutput(NamedTuple):
    """New tokens of a job, of one round or of several, or its end."""

    tokens: tuple[int, ...] = ()
    scores: Scores | None = None
    version: str | None = None
    """The draft version that drafted."""
    route: str | None = None
    finish_reason: str | None = None
    """Set when it is finished."""
    steps: tuple[tuple[int, int], ...] = ()
    """(drafted, accepted) of each round, once it is finished."""
    error: ApiError | None = None
    """Why it ended before its end."""
    prompt: Scores | None = None
    """The log-probabilities of the prompt's tokens but the first, where they were asked for; with the first output."""

    @property
    def last(self) -> bool:
        """Whether nothing comes after it."""
        return self.finish_reason is not None or self.error is not None


@dataclass(slots=True, eq=False)
class ClientJob:
    """A request with somebody who waits for it."""

    request: Request
    deliver: Callable[[JobOutput], None]
    """Called on the event loop."""
    pause: float = 0.0
    """Seconds between two portions of what comes."""
    top: int | None = None
    """How many of the likeliest tokens' log-probabilities come with each token; None for none at all."""


@dataclass(slots=True, eq=False)
class EngineJob:
    """A job where it is decoded. ``pause`` and ``top``: see :class:`ClientJob`."""

    request: Request
    pause: float = 0.0
    top: int | None = None
    begun: bool = False
    """Whether anything has been told, or is about to be."""
    why: ApiError | None = None
    """Why it was ended."""
    done: Completion | None = None
    compiled: CompiledGrammar | None = None
    """Its grammar, which is kept as long as it."""
    row: SequenceState | None = None
    """Since its first round."""
    prompt: Scores | None = None
    """The prompt's log-probabilities, until its caller is told."""
    _told: int = 0
    """Tokens that its caller has been told of."""
    _scores: Scores | None = None

    def score(self, scores: Scores) -> None:
        """Add log-probabilities of the tokens that a round brought."""
        self._scores = scores if self._scores is None else self._scores.then(scores)

    def take(self) -> list[JobOutput]:
        """Return what its caller has not been told. Why it was ended is an output of its own, for what came before is
        still shown."""
        outputs = [output] if (output := self._news()) else []
        if self.why:
            outputs.append(JobOutput(error=self.why))
        return outputs

    def _news(self) -> JobOutput | None:
        row, done = self.row, None if self.why else self.done
        tokens = tuple(row.tokens[row.prompt_len + self._told :]) if row else ()
        if not tokens and not done:
            return None
        self._told += len(tokens)
        scores, prompt, self._scores, self.prompt = self._scores, self.prompt, None, None
        version, route = (row.rounds[-1].draft_version, row.route) if row else (None, None)
        news = JobOutput(tokens, scores, version, route, prompt=prompt)
        if done is None:
            return news
        steps = tuple((each.drafted, each.accepted) for each in done.rounds)
        return news._replace(route=done.route, finish_reason=done.finish_reason, steps=steps)


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
    tokens, scores, version, route, finish_reason, steps, error, prompt = packed
    scores, prompt = (Scores(*each) if each else None for each in (scores, prompt))
    steps = tuple(map(tuple, steps))
    return JobOutput(tuple(tokens), scores, version, route, finish_reason, steps, api_error(error), prompt)


def api_error(packed: list[Any] | None) -> ApiError | None:
    """Make the error anew; None of None."""
    return ERRORS[packed[0]](**packed[1]) if packed else None


def _plain(thing: Any) -> Any:
    """Return an error as a list, a record as a dictionary."""
    if isinstance(thing, ApiError):
        return [type(thing).__name__, thing.facts]
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain).encode
