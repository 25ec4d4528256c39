"""Retention policies: which requests stay and which go, decided from their index alone. Nothing is read or deleted
here.

A request that an unfinished run has claimed is never named, and counts towards its route's limits. Held-out requests
have a part of every limit of their own, as large as their share of the route, so that training data does not push out
evaluation data.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from storage.settings import Limits, RetentionSettings

Rule = Literal["release", "age", "duplicates", "requests", "bytes", "total_bytes"]
Doomed = dict[str, Rule]
"""Request id -> the policy that ends it."""


@dataclass(frozen=True, slots=True)
class IndexedRequest:
    """One request as the index describes it."""

    request_id: str
    route: str
    tenant: str
    created_at: float
    bytes: int
    prompt_hash: int | None
    divergence: float | None
    holdout: bool
    under_way: bool = False
    """Whether an unfinished run learns from it."""
    learned: bool = False
    """Whether a judged run has claimed it."""


Rows = list[IndexedRequest]
Size = Callable[[IndexedRequest], int]


def decide(kept: Iterable[IndexedRequest], settings: RetentionSettings, now: float) -> Doomed:
    """Return the requests to delete, with the reason: each route by its limits, then all routes by ``total_bytes``."""
    routes: dict[str, Rows] = defaultdict(list)
    for one in kept:
        routes[one.route].append(one)
    doomed: Doomed = {}
    for route, rows in sorted(routes.items()):
        doomed |= ended_on_route(rows, settings.for_route(route), now)
    if settings.total_bytes is not None:
        left = {route: [one for one in rows if one.request_id not in doomed] for route, rows in routes.items()}
        allotted = allot({route: _sum(rows, _bytes) for route, rows in left.items()}, settings.total_bytes)
        for route, rows in left.items():
            doomed |= _fit(rows, settings.for_route(route), allotted[route], _bytes, "total_bytes")
    return doomed


def ended_on_route(rows: Rows, limits: Limits, now: float) -> Doomed:
    """Return the requests to delete on one route."""
    doomed: Doomed = {}

    def end(those: Iterable[IndexedRequest], rule: Rule) -> None:
        doomed.update({one.request_id: rule for one in those if not one.under_way})

    def left() -> Rows:
        return [one for one in rows if one.request_id not in doomed]

    if limits.release:
        end([one for one in rows if one.learned and not one.holdout], "release")
    if limits.age_seconds is not None:
        end([one for one in left() if now - one.created_at > limits.age_seconds], "age")
    if limits.duplicates is not None:
        end(repeated(left(), limits.duplicates), "duplicates")
    if limits.requests is not None:
        doomed.update(_fit(left(), limits, limits.requests, lambda _: 1, "requests"))
    if limits.bytes is not None:
        doomed.update(_fit(left(), limits, limits.bytes, _bytes, "bytes"))
    return doomed


def repeated(rows: Rows, most: int) -> Rows:
    """Return repeats beyond each tenant's newest ``most`` of one prompt; unknown prompts count as distinct."""
    seen: dict[tuple[str, int], int] = defaultdict(int)
    over = []
    for one in sorted(rows, key=_newest):
        if one.prompt_hash is not None:
            seen[one.tenant, one.prompt_hash] += 1
            if seen[one.tenant, one.prompt_hash] > most:
                over.append(one)
    return over


def allot(wanted: Mapping[str, int], limit: int) -> dict[str, int]:
    """Share out a limit: whoever wants less than an equal share gets it whole, and the rest is divided among the
    others."""
    left, shares = limit, {}
    for done, (name, size) in enumerate(sorted(wanted.items(), key=lambda item: (item[1], item[0]))):
        shares[name] = min(size, left // (len(wanted) - done))
        left -= shares[name]
    return shares


def _fit(rows: Rows, limits: Limits, limit: int, size: Size, rule: Rule) -> Doomed:
    """Return the requests beyond a limit; held-out ones and the others each have their part of it."""
    if (total := _sum(rows, size)) <= limit:
        return {}
    doomed: Doomed = {}
    judges = [one for one in rows if one.holdout]
    part = limit * _sum(judges, size) // total
    for some, most in ((judges, part), ([one for one in rows if not one.holdout], limit - part)):
        for one in _beyond(some, limits, most, size):
            doomed[one.request_id] = rule
    return doomed


def _beyond(rows: Rows, limits: Limits, limit: int, size: Size) -> Rows:
    """Return the requests beyond a limit, each tenant having its share of the limit."""
    tenants: dict[str, Rows] = defaultdict(list)
    for one in rows:
        tenants[one.tenant if limits.fair else ""].append(one)
    shares = allot({tenant: _sum(theirs, size) for tenant, theirs in tenants.items()}, limit)
    return [one for tenant, theirs in tenants.items() for one in _last(theirs, limits, shares[tenant], size)]


def _last(rows: Rows, limits: Limits, limit: int, size: Size) -> Rows:
    """Return the least preferred requests, from the first that does not fit."""
    room = limit - _sum([one for one in rows if one.under_way], size)
    free = sorted((one for one in rows if not one.under_way), key=RANKS[limits.prefer])
    for number, one in enumerate(free):
        room -= size(one)
        if room < 0:
            return free[number:]
    return []


def _newest(one: IndexedRequest) -> tuple[float, str]:
    return -one.created_at, one.request_id


def _at_random(one: IndexedRequest) -> tuple[float, str]:
    """Return a hash of the id as rank: the n smallest hashes are a uniform sample, however often it is cut."""
    return float(int.from_bytes(hashlib.blake2b(one.request_id.encode(), digest_size=6).digest())), one.request_id


def _divergent(one: IndexedRequest) -> tuple[float, float, str]:
    """Return a rank that puts the most divergent first, the newest of equals first, and unknown ones last."""
    return (1.0 if one.divergence is None else -one.divergence, *_newest(one))


RANKS: dict[str, Callable[[IndexedRequest], tuple[float | str, ...]]] = {
    "newest": _newest,
    "reservoir": _at_random,
    "divergent": _divergent,
}
"""Order of retention -> the rank that it sorts by, the most preferred first."""


def _bytes(one: IndexedRequest) -> int:
    return one.bytes


def _sum(rows: Sequence[IndexedRequest], size: Size) -> int:
    return sum(map(size, rows))
