"""Recording traces with a real pair: all positions of a text are rows of one batch of draft chains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from osd.bench.contenders import Tokens
from osd.bench.gamma.rounds import Recording, Trace
from osd.models import Pair

Report = Callable[[int, int, str], None]
"""Texts done, texts in all, and the data set."""


def record_traces(
    pair: Pair,
    data_set: str,
    prompts: Sequence[Tokens],
    *,
    temperature: float = 0.0,
    new_tokens: int = 128,
    depth: int = 20,
    seed: int = 0,
    batch: int = 8,
    rows: int = 32,
    report: Report = lambda done, total, name: None,
) -> list[Trace]:
    """Decode the prompts with the target alone, ``batch`` together, and draft a chain of ``depth`` tokens at every
    position, ``rows`` chains together. Raises BadRequest for a prompt that cannot be served."""
    raise NotImplementedError


def record_file(
    path: Path,
    pair: Pair,
    data_sets: Mapping[str, Sequence[Tokens]],
    *,
    temperatures: Sequence[float] = (0.0,),
    new_tokens: int = 128,
    depth: int = 20,
    seed: int = 0,
    report: Report = lambda done, total, name: None,
) -> Recording:
    """Record into a file, which grows by one data set at one temperature at a time; what it holds already is kept.

    Raises BadBenchFile when the file holds another pair's traces, or was recorded with other settings.
    """
    raise NotImplementedError
