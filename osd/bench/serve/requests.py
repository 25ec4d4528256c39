"""What clients ask a server for: prompts of files with answers of some length, or what a real service was asked for."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple, Protocol

from osd.bench.harness.plan import all_prompts
from osd.bench.harness.prompts import Tokens, name_of, tokens_by_set
from osd.models.pair import Pair, row_limit
from osd.prompts import open_bytes
from storage.errors import BadPromptFile
from storage.settings import ServeSettings

PROMPTS = 256
"""Prompts taken from each file; they come again and again."""
STRIDE = 97
"""Prompts by which a turn begins after the one before it."""
ENTRIES = 20_000
"""Requests taken from a trace at most."""
FIELDS = ("t_s", "context_tokens", "generated_tokens")


class ServeJob(NamedTuple):
    """What is asked for: a prompt and so many tokens."""

    prompt: Tokens
    tokens: int


class TimedJob(NamedTuple):
    """A job, and when it comes: seconds from the beginning."""

    at: float
    job: ServeJob


class AnswersPlan(Protocol):
    """A plan whose prompts are answered with so many tokens at most."""

    @property
    def prompts(self) -> tuple[str, ...]: ...
    @property
    def max_tokens(self) -> int: ...


def prompts_that_fit(plan: AnswersPlan, pair: Pair, serve: ServeSettings) -> list[Tokens]:
    """Return the prompts of all files that a row holds together with their answers. Raises BadInput where a file has
    none."""
    return all_prompts(tokens_by_set(pair.tokenizer, plan.prompts, PROMPTS, row_limit(pair, serve) - plan.max_tokens))


def shuffled_jobs(prompts: Sequence[Tokens], most: int, least: int | None = None) -> list[ServeJob]:
    """Return jobs with answers of ``least`` to ``most`` tokens, at least half of them: were all alike, a server that
    does not draft would end and begin its rows in step, and read their prompts together. Prompts of all files are
    mixed, as in traffic, and every time in the same order."""
    chance, least = random.Random(0), (most + 1) // 2 if least is None else least
    jobs = [ServeJob(prompt, chance.randint(least, most)) for prompt in prompts]
    chance.shuffle(jobs)
    return jobs


def jobs_of(jobs: Sequence[ServeJob], turn: int) -> Iterator[ServeJob]:
    """Yield those of a turn, without end: all arms have the same ones."""
    return islice(cycle(jobs), turn * STRIDE % len(jobs), None)


@dataclass(frozen=True, slots=True)
class ArrivalTrace:
    """Requests of a real service, cut to what the pair's rows hold. They have no text of their own."""

    name: str
    jobs: Sequence[ServeJob]
    times: Sequence[float]

    def arrivals(self, per_second: float, seconds: float) -> Iterator[TimedJob]:
        """Yield them in the trace's rhythm, so fast or slow that so many a second come in the mean."""
        begun = self.times[0]
        scale = len(self.times) / (self.times[-1] - begun) / per_second
        for at, job in zip(self.times, self.jobs, strict=True):
            if (at - begun) * scale > seconds:
                return
            yield TimedJob((at - begun) * scale, job)


def read_trace(path: Path, tokens: Sequence[int], limit: int, longest: int, count: int = ENTRIES) -> ArrivalTrace:
    """Read the first ``count`` requests. Prompts are cut out of ``tokens``, a long text; answers have ``longest``
    tokens at most, and the prompt what a row of ``limit`` has left. Raises BadPromptFile."""
    entries = list(islice(_entries(path), count))
    if len(entries) < 2 or entries[-1][0] <= entries[0][0]:
        raise BadPromptFile(path=path, reason="has no two requests at different times")
    jobs, text = [], cycle(tokens)
    for _, prompt, answer in entries:
        answered = max(2, min(answer, longest))
        jobs.append(ServeJob(tuple(islice(text, max(1, min(prompt, limit - answered)))), answered))
    return ArrivalTrace(name_of(path), jobs, [at for at, _, _ in entries])


def _entries(path: Path) -> Iterator[tuple[float, int, int]]:
    """Yield seconds since the trace's beginning, the prompt's tokens and the answer's."""
    try:
        with open_bytes(path) as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    fields = json.loads(line)
                    at, prompt, answer = (fields[name] for name in FIELDS)
                    yield float(at), int(prompt), int(answer)
                except (ValueError, KeyError, TypeError):
                    reason = f"line {number} is no JSON object with {', '.join(FIELDS)}"
                    raise BadPromptFile(path=path, line=number, reason=reason) from None
    except OSError as error:
        raise BadPromptFile(path=path, reason=f"cannot be read ({error.strerror or error})") from None
