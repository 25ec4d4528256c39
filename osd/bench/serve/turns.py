"""The requests of a turn: all arms have the same ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from osd.bench.serve.client import ServeJob

STRIDE = 97
"""Prompts by which a turn begins after the one before it."""


def shuffled_jobs(prompts: Sequence[Sequence[int]], most: int, least: int | None = None) -> list[ServeJob]:
    """Answers of ``least`` to ``most`` tokens, at least half of them: were all alike, a server that does not draft
    would end and begin its rows in step, and read their prompts together. Prompts of all files are mixed, as in
    traffic, and every time in the same order."""
    chance, least = random.Random(0), (most + 1) // 2 if least is None else least
    jobs = [ServeJob(tuple(prompt), chance.randint(least, most)) for prompt in prompts]
    chance.shuffle(jobs)
    return jobs


def jobs_of(jobs: Sequence[ServeJob], turn: int) -> Iterator[ServeJob]:
    """Those of a turn, without end."""
    return islice(cycle(jobs), turn * STRIDE % len(jobs), None)
