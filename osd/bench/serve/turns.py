"""Taking turns: everybody has the same prompts in a turn, and everybody is first as often."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from osd.bench.serve.client import Job

STRIDE = 97
"""Prompts by which a turn begins after the one before it."""


def shuffled_jobs(prompts: Sequence[Sequence[int]], most: int, least: int | None = None) -> list[Job]:
    """Answers of ``least`` to ``most`` tokens, at least half of them: were all alike, a server that does not draft
    would end and begin its rows in step, and read their prompts together. Prompts of all files are mixed, as in
    traffic, and every time in the same order."""
    chance, least = random.Random(0), (most + 1) // 2 if least is None else least
    jobs = [Job(tuple(prompt), chance.randint(least, most)) for prompt in prompts]
    chance.shuffle(jobs)
    return jobs


def jobs_of(jobs: Sequence[Job], turn: int) -> Iterator[Job]:
    """Those of a turn, without end."""
    return islice(cycle(jobs), turn * STRIDE % len(jobs), None)


def turned(names: Sequence[str], turn: int) -> list[str]:
    """The same, beginning with another one every other turn, and backwards in the turns between: who comes after a rest
    is slower for seconds, and that must not always be the same."""
    begin = turn // 2 % len(names)
    return [*names[begin:], *names[:begin]][:: -1 if turn % 2 else 1]
