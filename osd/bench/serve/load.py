"""Closed-loop load: so many clients, each of which asks for its next answer when it has the last one."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np

PATIENCE = 600.0


@dataclass(frozen=True, slots=True)
class Reply:
    """One streamed answer, as its client saw it."""

    first_s: float
    """From the request to the first chunk with text or an end."""
    whole_s: float
    tokens: int

    @property
    def per_token_ms(self) -> float | None:
        """Mean milliseconds between its tokens after the first."""
        return 1000 * (self.whole_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(slots=True)
class Load:
    """What came of one load."""

    replies: list[Reply] = field(default_factory=list)
    failed: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second of all clients together."""
        return sum(reply.tokens for reply in self.replies) / self.seconds if self.seconds else 0.0

    def percentiles(self) -> dict[str, float | None]:
        """Milliseconds to the first token and between tokens."""
        first = [1000 * reply.first_s for reply in self.replies]
        each = [ms for reply in self.replies if (ms := reply.per_token_ms) is not None]
        return {
            f"{name}_ms_p{q}": float(np.percentile(values, q)) if values else None
            for name, values in (("ttft", first), ("tpot", each)) for q in (50, 95, 99)
        }  # fmt: skip


def run_load(url: str, prompts: Sequence[Sequence[int]], clients: int, max_tokens: int) -> Load:
    """Every prompt once, by so many clients at a time."""
    load, lock, todo = Load(), threading.Lock(), iter(prompts)

    def client() -> None:
        while True:
            with lock:
                prompt = next(todo, None)
            if prompt is None:
                return
            reply = ask(url, prompt, max_tokens)
            with lock:
                load.failed += reply is None
                load.replies += [reply] if reply else []

    begun = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(client) for _ in range(clients)]:
            done.result()
    load.seconds = time.perf_counter() - begun
    return load


def ask(url: str, prompt: Sequence[int], max_tokens: int) -> Reply | None:
    """One greedy answer of exactly ``max_tokens``; None where it failed."""
    body = {
        "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    begun, first, tokens = time.perf_counter(), 0.0, 0
    try:
        for event in _events(url, body):
            first = first or time.perf_counter() - begun
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    return Reply(first, time.perf_counter() - begun, tokens) if tokens else None


def _events(url: str, body: object) -> Iterator[dict[str, dict[str, int]]]:
    """The events of a stream. Raises OSError, HTTPException, ValueError."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise http.client.HTTPException(answer.status)
        for line in answer:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
    finally:
        connection.close()
