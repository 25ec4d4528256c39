"""Requests such as a served model leaves, drawn from a seed: shapes and skew as in traffic, no text behind them.

Token ids are log-uniform over the vocabulary (Zipf's law), distinct within a position; the likeliest token has 10 % to
98 % of the mass, and the others fall off as rank^-a with noise, as next-token distributions do.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from storage.records import RequestSamples, TokenKind

VOCABULARY = 151_936
POSITIONS = 100
"""Of a request."""
PROMPT = 120
"""Tokens of a prompt."""


def draw_requests(count: int, k: int, seed: int = 0) -> list[RequestSamples]:
    """``count`` finished requests with ``POSITIONS`` positions of k tokens each."""
    rng = np.random.default_rng(seed)
    return [_draw_request(rng, number, k) for number in range(count)]


def renewed(pool: list[RequestSamples], first: int, created_at: float) -> list[RequestSamples]:
    """The same content as other requests: ids from ``first`` on, a millisecond apart, prompts of their own."""
    return [_renew(samples, first + i, created_at + (first + i) / 1000) for i, samples in enumerate(pool)]


def request_id(number: int) -> str:
    """As long as the ids that servers give."""
    return f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}{number:016x}"


def _renew(samples: RequestSamples, number: int, created_at: float) -> RequestSamples:
    tokens = samples.tokens.copy()
    tokens[:3] = number % 1000, number // 1000 % 1000, number // 1_000_000
    return replace(samples, request_id=request_id(number), created_at=created_at, tokens=tokens)


def _draw_request(rng: np.random.Generator, number: int, k: int) -> RequestSamples:
    m = POSITIONS
    ids, logprobs, outside = _draw_top(rng, m, k)
    kinds = rng.choice(np.array([0, 1, 2], np.uint8), m, p=[0.7, 0.2, 0.1])
    emitted = ids[:, 0]
    drafted = np.where(kinds == TokenKind.REJECTED, ids[:, 1], emitted).astype(np.int32)
    chances = np.where(kinds == TokenKind.UNDRAFTED, np.nan, rng.beta(4, 1, m)).astype(np.float16)
    return RequestSamples(
        request_id=request_id(number), route="default", tenant=f"tenant-{number % 7}", draft_version="default-000001",
        created_at=0.0, prompt_len=PROMPT, tokens=np.concatenate([_log_uniform(rng, PROMPT), emitted]),
        positions=np.arange(PROMPT, PROMPT + m, dtype=np.int32), kinds=kinds, drafted=drafted, topk_ids=ids,
        topk_logprobs=logprobs, outside=outside, acceptance=chances,
    )  # fmt: skip


def _draw_top(
    rng: np.random.Generator, m: int, k: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16], npt.NDArray[np.float32]]:
    """(m, k) ids, (m, k) log-probabilities, likeliest first, (m,) mass outside."""
    first = rng.uniform(0.1, 0.98, (m, 1))
    ranks = np.arange(1, 4 * k)
    tail = ranks ** -rng.uniform(1.1, 2.0, (m, 1)) * rng.lognormal(0, 0.3, (m, 4 * k - 1))
    tail = -np.sort(-tail * (1 - first) / tail.sum(1, keepdims=True), axis=1)
    p = -np.sort(-np.concatenate([first, tail], axis=1), axis=1)
    outside = (1 - p[:, :k].sum(1)).clip(0, 1).astype(np.float32)
    ids = np.stack([_distinct(rng, k) for _ in range(m)])
    return ids, np.log(p[:, :k]).astype(np.float16), outside


def _distinct(rng: np.random.Generator, k: int) -> npt.NDArray[np.int32]:
    drawn = np.unique(_log_uniform(rng, 4 * k))
    return rng.permutation(drawn)[:k]


def _log_uniform(rng: np.random.Generator, count: int) -> npt.NDArray[np.int32]:
    return (VOCABULARY ** rng.random(count)).astype(np.int32)
