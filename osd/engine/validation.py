"""Validation of requests, at the edge, before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from storage.errors import BadRequest
from storage.records import Request


class PairLimits(Protocol):
    """What a request is checked against: a :class:`osd.models.pair.Pair`, or what stands for it elsewhere."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, which run from 0."""

    @property
    def limit(self) -> int:
        """Positions that the target knows."""

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer, or None."""


Check = Callable[[Request, PairLimits, int], str | None]
"""Takes the request, the pair and the tokens of a row; says what is wrong, None where nothing is."""
Range = tuple[Callable[[Request], float | None], Callable[[float], bool], str]
"""A value of the request (None: not given), whether it is right, and what to say where it is not."""


def check_request(request: Request, reader: PairLimits, limit: int) -> None:
    """Check a request against a vocabulary and ``limit``, the tokens of a row.

    Raises BadRequest naming the field that is wrong and what would be right.
    """
    for field, (value_of, is_right, reason) in RANGES.items():
        value = value_of(request)
        if value is not None and not is_right(value):
            raise BadRequest(field=field, reason=f"{value} {reason}")
    for field, check in CHECKS.items():
        if complaint := check(request, reader, limit):
            raise BadRequest(field=field, reason=complaint)


def _prompt(request: Request, reader: PairLimits, limit: int) -> str | None:
    prompt = request.prompt_tokens
    if not prompt:
        return "the prompt is empty; give at least one token"
    if len(prompt) + min(1, request.max_new_tokens) > limit:
        reason = f"the prompt has {len(prompt)} tokens, and a row holds {limit} with at least one to come"
        return f"{reason}; shorten it" + (" or raise serve.max_length" if len(prompt) < reader.limit else "")
    size = reader.vocab_size
    for position, token in enumerate(prompt):
        if not (isinstance(token, int) and 0 <= token < size):
            return f"token {position} is {token!r}, and ids run from 0 to {size - 1}"
    return None


def _max_new_tokens(request: Request, reader: PairLimits, limit: int) -> str | None:
    least = 1 if request.prompt_logprobs is None else 0
    return None if request.max_new_tokens >= least else f"{request.max_new_tokens} asks for nothing; give 1 or more"


def _logit_bias(request: Request, reader: PairLimits, limit: int) -> str | None:
    biases = request.sampling.logit_bias
    wrong = next((value for value in biases.values() if not math.isfinite(value)), None)
    return _ids(biases, reader) if wrong is None else f"{wrong} is no bias; give a finite number"


def _allowed_token_ids(request: Request, reader: PairLimits, limit: int) -> str | None:
    allowed = request.sampling.allowed_token_ids
    if allowed is None:
        return None
    return _ids(allowed, reader) if allowed else "it allows no token; give at least one, or leave it out"


def _stop_token_ids(request: Request, reader: PairLimits, limit: int) -> str | None:
    return _ids(request.stop_token_ids, reader)


def _ids(tokens: Iterable[int], reader: PairLimits) -> str | None:
    wrong = next((token for token in tokens if not 0 <= token < reader.vocab_size), None)
    return None if wrong is None else f"there is no token {wrong}; ids run from 0 to {reader.vocab_size - 1}"


def _min_tokens(request: Request, reader: PairLimits, limit: int) -> str | None:
    value, most = request.min_tokens, request.max_new_tokens
    return None if 0 <= value <= most else f"{value} is outside [0, {most}], the most tokens that are asked for"


def _bad_words(request: Request, reader: PairLimits, limit: int) -> str | None:
    words = request.sampling.bad_words
    if not words:
        return None
    if reader.tokenizer is None:
        return "the target has no tokenizer, so words cannot be told; leave them out"
    encoded = [reader.tokenizer.encode(word.lstrip(), add_special_tokens=False) for word in words]
    return None if all(encoded) else "an empty word would forbid every text; leave it out"


def _stop(request: Request, reader: PairLimits, limit: int) -> str | None:
    if any(not stop for stop in request.stop):
        return "an empty stop string would end every text; leave it out"
    if request.stop and reader.tokenizer is None:
        return "the target has no tokenizer, so text cannot be searched; leave stop strings out"
    return None


def _ignore_eos(request: Request, reader: PairLimits, limit: int) -> str | None:
    both = request.ignore_eos and request.grammar
    return "a text that matches a grammar ends with an end token; leave it out" if both else None


RANGES: dict[str, Range] = {
    "temperature": (
        lambda request: request.sampling.temperature, lambda value: math.isfinite(value) and value >= 0,
        "is not a temperature; give 0 (greedy) or more",
    ),
    "top_k": (
        lambda request: request.sampling.top_k, lambda value: value >= -1,
        "keeps no token; give 1 or more, or 0 to keep all",
    ),
    "top_p": (
        lambda request: request.sampling.top_p, lambda value: 0 < value <= 1,
        "is outside (0, 1]; 1 keeps every token",
    ),
    "min_p": (
        lambda request: request.sampling.min_p, lambda value: 0 <= value <= 1,
        "is outside [0, 1]; 0 keeps every token",
    ),
    "repetition_penalty": (
        lambda request: request.sampling.repetition_penalty, lambda value: math.isfinite(value) and value > 0,
        "is no penalty; give more than 0, 1 penalises nothing",
    ),
    "presence_penalty": (
        lambda request: request.sampling.presence_penalty, lambda value: -2 <= value <= 2,
        "is outside [-2, 2]; 0 penalises nothing",
    ),
    "frequency_penalty": (
        lambda request: request.sampling.frequency_penalty, lambda value: -2 <= value <= 2,
        "is outside [-2, 2]; 0 penalises nothing",
    ),
    "seed": (lambda request: request.sampling.seed, lambda value: value >= 0, "is negative; give 0 or more"),
    "gamma": (lambda request: request.gamma, lambda value: value >= 0, "is negative; give 0 (no draft) or more"),
}  # fmt: skip
CHECKS: dict[str, Check] = {
    "prompt": _prompt,
    "max_new_tokens": _max_new_tokens,
    "logit_bias": _logit_bias,
    "allowed_token_ids": _allowed_token_ids,
    "bad_words": _bad_words,
    "stop_token_ids": _stop_token_ids,
    "min_tokens": _min_tokens,
    "ignore_eos": _ignore_eos,
    "stop": _stop,
}
