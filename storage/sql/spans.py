"""Spans of time (minute, hour, UTC day, week), and covering a stretch with few of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

MINUTE, HOUR, DAY = 60, 3_600, 86_400
WEEK = 7 * DAY
"""Seconds of a week, Thursday to Wednesday as Unix time has it: never shown, it keeps a year at few rows."""
SPANS = {"minute": MINUTE, "hour": HOUR, "day": DAY}
"""Spans that can be asked for by name."""
KEPT = (MINUTE, HOUR, DAY, WEEK)
"""Spans in seconds at which sums are stored."""


@dataclass(frozen=True, slots=True)
class SpanPart:
    """A piece of time from ``start`` (None: no lower end) to before ``end`` (None: no upper end), in ``span`` seconds
    steps."""

    span: int
    start: int | None
    end: int | None


def floor_to(seconds: float, span: int) -> int:
    """Return the start of the span that ``seconds`` falls into."""
    return int(seconds // span) * span


def ceil_to(seconds: float, span: int) -> int:
    """Return the first start of a span that is not before ``seconds``."""
    return -floor_to(-seconds, span)


def by_span(added: Iterable[tuple[tuple[Any, ...], Sequence[float]]]) -> list[tuple[tuple[Any, ...], list[float]]]:
    """Sum counts of (seconds, …) keys by (span, start, …) for every stored span, in order.

    Minutes are summed first, and wider spans from those: there are far fewer of them.
    """
    minutes: dict[tuple[Any, ...], list[float]] = {}
    for (seconds, *key), counts in added:
        _add(minutes, (floor_to(seconds, MINUTE), *key), counts)
    sums: dict[tuple[Any, ...], list[float]] = {}
    for (start, *key), counts in minutes.items():
        for span in KEPT:
            _add(sums, (span, floor_to(start, span), *key), counts)
    return sorted(sums.items())


def _add(sums: dict[tuple[Any, ...], list[float]], key: tuple[Any, ...], counts: Sequence[float]) -> None:
    total = sums.get(key)
    sums[key] = list(counts) if total is None else [*map(add, total, counts)]


def cover(since: float | None, until: float | None, coarsest: int = WEEK) -> list[SpanPart]:
    """Return disjoint pieces that cover [since, until), widened to whole minutes: weeks inside, finer at the edges."""
    start = None if since is None else floor_to(since, MINUTE)
    end = None if until is None else ceil_to(until, MINUTE)
    if start is not None and end is not None and start >= end:
        return [SpanPart(MINUTE, start, start)]
    return _cover(start, end, [span for span in reversed(KEPT) if span <= coarsest])


def _cover(start: int | None, end: int | None, spans: list[int]) -> list[SpanPart]:
    if start is not None and start == end:
        return []
    span, finer = spans[0], spans[1:]
    first = None if start is None else ceil_to(start, span)
    last = None if end is None else floor_to(end, span)
    if first is not None and last is not None and first >= last:
        return _cover(start, end, finer)
    before = [] if start is None else _cover(start, first, finer)
    after = [] if end is None else _cover(last, end, finer)
    return [*before, SpanPart(span, first, last), *after]
