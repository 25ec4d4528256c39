"""Traces of real services: when requests came, and how long prompts and answers were. They have no text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from osd.bench.serve.client import Address, ServeJob
from osd.bench.serve.load import TimedJob, closed_load, open_load
from osd.prompts import open_bytes
from storage.errors import BadPromptFile

SHARE = 0.8
"""Share of what the slowest arm can do that the trace's arrivals ask for."""
UNDER_WAY = 128
FIELDS = ("t_s", "context_tokens", "generated_tokens")


class Entry(NamedTuple):
    """One request of a trace: seconds since its beginning, tokens."""

    at: float
    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class ArrivalTrace:
    """Its requests, cut to what the pair's rows hold."""

    name: str
    jobs: Sequence[ServeJob]
    times: Sequence[float]

    @property
    def per_second(self) -> float:
        """Requests, by the trace's own clock."""
        return len(self.times) / (self.times[-1] - self.times[0])

    def arrivals(self, per_second: float, seconds: float) -> Iterator[TimedJob]:
        """Its rhythm, faster or slower, so that so many a second come in the mean."""
        scale = self.per_second / per_second
        for at, job in zip(self.times, self.jobs, strict=True):
            if (at - self.times[0]) * scale > seconds:
                return
            yield TimedJob((at - self.times[0]) * scale, job)


ENTRIES = 20_000
"""Requests taken from a trace at most."""


def read_trace(path: Path, tokens: Sequence[int], limit: int, longest: int, count: int = ENTRIES) -> ArrivalTrace:
    """Read the first ``count`` requests. Prompts are cut out of ``tokens``, a long text; answers have ``longest``
    tokens at most, and the prompt what a row of ``limit`` has left. Raises BadPromptFile."""
    entries = list(islice(_entries(path), count))
    if len(entries) < 2 or entries[-1].at <= entries[0].at:
        raise BadPromptFile(path=path, reason="has no two requests at different times")
    jobs, begin = [], 0
    for entry in entries:
        answer = max(2, min(entry.answer, longest))
        length = max(1, min(entry.prompt, limit - answer))
        text = [tokens[(begin + i) % len(tokens)] for i in range(length)]
        jobs.append(ServeJob(tuple(text), answer))
        begin += length
    return ArrivalTrace(path.name.removesuffix(".gz").removesuffix(".jsonl"), jobs, [entry.at for entry in entries])


def _entries(path: Path) -> Iterator[Entry]:
    try:
        with open_bytes(path) as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    fields = json.loads(line)
                    at, prompt, answer = (fields[name] for name in FIELDS)
                    yield Entry(float(at), int(prompt), int(answer))
                except (ValueError, KeyError, TypeError):
                    reason = f"line {number} is no JSON object with {', '.join(FIELDS)}"
                    raise BadPromptFile(path=path, line=number, reason=reason) from None
    except OSError as error:
        raise BadPromptFile(path=path, reason=f"cannot be read ({error.strerror or error})") from None


def trace_line(
    arms: Mapping[str, Address], rows: int, trace: ArrivalTrace, seconds: float, report: Callable[[str], None]
) -> dict[str, Any]:
    """Every arm, in batches of so many rows, under the same arrivals: tokens a second and latencies. What each can do
    is measured first."""
    report(f"{trace.name}: what the servers can do")
    able = {}
    for arm, address in arms.items():
        load = closed_load(address, iter(trace.jobs), 2 * rows, seconds)
        able[arm] = load.rate / (sum(reply.tokens for reply in load.replies) / max(1, len(load.replies)))
    per_second = SHARE * min(able.values())
    lines = {}
    for arm, address in arms.items():
        report(f"{trace.name}: {arm}")
        load = open_load(address, trace.arrivals(per_second, seconds), UNDER_WAY, seconds)
        counts = {"tokens_per_s": load.rate, "requests": len(load.replies), "failed": load.failed}
        lines[arm] = {**counts, **load.percentiles()}
    return {"requests_per_s": per_second, "able_per_s": able, **lines}
