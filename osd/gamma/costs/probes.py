"""Passes that are timed before the first request, in turns: what rules that weigh costs begin with."""

from __future__ import annotations

import time
from collections.abc import Callable

from osd.gamma.costs.model import CostModel

SECONDS = 0.1
"""Time that probes may take; a turn that has begun is ended, and there is one at least beside the first."""
MOST_TURNS = 8
READ = 64
"""Tokens that the drafter reads before one of the drafts."""
ALONE = 0.3
"""Standard error, ÷ it, of what was timed once."""

TimePass = Callable[[int, int], float]
"""Milliseconds of a target pass over (rows, tokens of each)."""
TimeDraft = Callable[[int, int, int], float]
"""Milliseconds of a draft over (rows, passes, tokens to read first)."""


def probe(costs: CostModel, rows: int, at: int, time_pass: TimePass, time_draft: TimeDraft | None) -> None:
    """Time target passes, and drafts, of one row and of ``rows``, whose caches hold ``at`` positions each.

    The first turn is not counted, for first passes make what others use. Of the others each shape's least time counts:
    whatever else the machine does makes passes slower, never faster. How far the second least is from it is its error.
    """
    passes = list(dict.fromkeys([(rows, 1), (rows, 2), (rows, 5), (1, 1), (1, 2), (1, 5)]))
    drafts = list(dict.fromkeys([(rows, 1, 0), (rows, 4, 0), (1, 1, 0), (1, 4, 0), (1, 1, READ)])) if time_draft else []
    until, turns = time.perf_counter() + SECONDS, list[list[float]]()
    while len(turns) < 2 or (len(turns) <= MOST_TURNS and time.perf_counter() < until):
        taken = [time_pass(*shape) for shape in passes]
        turns.append(taken + [time_draft(*shape) for shape in drafts if time_draft])
    least = [_least(list(times)) for times in zip(*turns[1:], strict=True)]
    for (count, each), (ms, error) in zip(passes, least, strict=False):
        costs.probe_verify(count, count * each, ms, error, count * at)
    for draft, (ms, error) in zip(drafts, least[len(passes) :], strict=True):
        costs.probe_draft(*draft, ms, error)


def _least(times: list[float]) -> tuple[float, float]:
    """Return the least time, and its standard error ÷ it."""
    times.sort()
    return times[0], times[1] / times[0] - 1 if len(times) > 1 else ALONE
