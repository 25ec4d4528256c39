"""The engine without a server, in this process: the same requests, the same batch, the same manner of counting."""

from __future__ import annotations

import time
from collections.abc import Iterator

from osd.bench.serve.client import ServeJob
from osd.bench.serve.load import RAMP_SECONDS, Load
from osd.engine.engine import Engine
from storage.records import Request


def alone_load(engine: Engine, jobs: Iterator[ServeJob], rows: int, seconds: float) -> Load:
    """``rows`` requests at a time until the time is over, a ramp before it; those that run then are finished, and not
    counted."""
    load, under_way, begun = Load(), 0, time.perf_counter() + RAMP_SECONDS
    while (now := time.perf_counter() - begun) < seconds or under_way:
        while now < seconds and under_way < min(rows, engine.settings.serve.max_batch):
            engine.submit(request_of(next(jobs)))
            under_way += 1
        steps = engine.step()
        under_way -= sum(step.completion is not None for step in steps)
        if 0 <= time.perf_counter() - begun < seconds:
            load.tokens += sum(len(step.tokens) for step in steps)
    load.seconds = seconds
    return load


def request_of(job: ServeJob) -> Request:
    """As the server makes it of a client's."""
    return Request(job.prompt, max_new_tokens=job.tokens, ignore_eos=True)
