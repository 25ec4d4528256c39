"""Validation of requests, at the edge, before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from storage.errors import BadRequest
from storage.records import Request


class PairLimits(Protocol):
    """What a request is checked against: a :class:`osd.models.pair.Pair`, or what stands for it elsewhere."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, which run from 0."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer, or None."""
        ...


Check = Callable[[Request, PairLimits, int], str | None]


def check_request(request: Request, reader: PairLimits, limit: int) -> None:
    """Check a request against a vocabulary and ``limit``, the tokens of a row.

    Raises BadRequest naming the field that is wrong and what would be right.
    """
    for field, check in CHECKS.items():
        if reason := check(request, reader, limit):
            raise BadRequest(field=field, reason=reason)


def _prompt(request: Request, reader: PairLimits, limit: int) -> str | None:
    prompt = request.prompt_tokens
    if not prompt:
        return "the prompt is empty; give at least one token"
    if len(prompt) + min(1, request.max_new_tokens) > limit:
        reason = f"the prompt has {len(prompt)} tokens, and a row holds {limit} with at least one to come"
        return f"{reason}; shorten it or raise serve.max_length"
    size = reader.vocab_size
    for position, token in enumerate(prompt):
        if not (isinstance(token, int) and 0 <= token < size):
            return f"token {position} is {token!r}, and ids run from 0 to {size - 1}"
    return None


def _max_new_tokens(request: Request, reader: PairLimits, limit: int) -> str | None:
    least = 1 if request.prompt_logprobs is None else 0
    return None if request.max_new_tokens >= least else f"{request.max_new_tokens} asks for nothing; give 1 or more"


def _temperature(request: Request, reader: PairLimits, limit: int) -> str | None:
    value = request.sampling.temperature
    return None if math.isfinite(value) and value >= 0 else f"{value} is not a temperature; give 0 (greedy) or more"


def _top_k(request: Request, reader: PairLimits, limit: int) -> str | None:
    value = request.sampling.top_k
    return None if value is None or value >= 1 else f"{value} keeps no token; give 1 or more, or leave it out"


def _top_p(request: Request, reader: PairLimits, limit: int) -> str | None:
    value = request.sampling.top_p
    return None if value is None or 0 < value <= 1 else f"{value} is outside (0, 1]; 1 keeps every token"


def _seed(request: Request, reader: PairLimits, limit: int) -> str | None:
    value = request.sampling.seed
    return None if value is None or value >= 0 else f"{value} is negative; give 0 or more"


def _stop(request: Request, reader: PairLimits, limit: int) -> str | None:
    if any(not stop for stop in request.stop):
        return "an empty stop string would end every text; leave it out"
    if request.stop and reader.tokenizer is None:
        return "the target has no tokenizer, so text cannot be searched; leave stop strings out"
    return None


def _gamma(request: Request, reader: PairLimits, limit: int) -> str | None:
    value = request.gamma
    return None if value is None or value >= 0 else f"{value} is negative; give 0 (no draft) or more"


CHECKS: dict[str, Check] = {
    "prompt": _prompt,
    "max_new_tokens": _max_new_tokens,
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _top_p,
    "seed": _seed,
    "stop": _stop,
    "gamma": _gamma,
}
