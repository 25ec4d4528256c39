"""Which older requests are trained on again where ``learn.replay`` is ``reservoir``: a sample of all that earlier runs
learned from, even over routes and over age.

Each route gives as many as each other one; one that has fewer gives all, and the others share the rest. A route's n
requests are in order of age, rank 0 the oldest, and m of them are taken by systematic sampling: those whose rank k has

    (k m + s) mod n < m

They are m, n ÷ m ranks apart, give or take one. The start s is drawn below n, so that each request is taken with chance
m ÷ n. A seed draws the starts, and which routes give one more: the same seed takes the same of the same requests.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from storage.sql.tables import SampleRow

Wanted = Sequence[ColumnElement[bool]]


def draw(session: Session, wanted: Wanted, limit: int, seed: str) -> list[str]:
    """Return ids of ``limit`` requests that meet ``wanted``, newest first; of fewer, where there are not so many."""
    chance = random.Random(seed)
    counts = select(SampleRow.route, func.count()).where(*wanted).group_by(SampleRow.route)
    stored = {row[0]: row[1] for row in session.execute(counts)}
    found: list[tuple[float, str]] = []
    for route, number in shares(stored, limit, chance).items():
        start = chance.randrange(stored[route])
        found += _even(session, [*wanted, SampleRow.route == route], number, start, stored[route])
    return [request_id for _, request_id in sorted(found)]


def shares(stored: Mapping[str, int], limit: int, chance: random.Random) -> dict[str, int]:
    """Return how many requests each route gives, from how many it has; those that give one more are drawn."""
    routes = sorted(stored)
    chance.shuffle(routes)
    given = dict.fromkeys(routes, 0)
    while limit and (others := [route for route in routes if given[route] < stored[route]]):
        each = max(1, limit // len(others))
        for route in others[:limit]:
            more = min(each, stored[route] - given[route])
            given[route] += more
            limit -= more
    return given


def _even(session: Session, wanted: Wanted, number: int, start: int, stored: int) -> list[tuple[float, str]]:
    """Return (−creation time, id) of ``number`` of the ``stored`` requests that meet ``wanted``."""
    age = func.row_number().over(order_by=(SampleRow.created_at, SampleRow.request_id)) - 1
    ranked = select(SampleRow.created_at, SampleRow.request_id, age.label("age")).where(*wanted).subquery()
    taken = (ranked.c.age * number + start) % stored < number
    query = select(ranked.c.created_at, ranked.c.request_id).where(taken)
    return [(-created, request_id) for created, request_id in session.execute(query)]
