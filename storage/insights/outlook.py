"""How acceptance has risen with the answers that a draft learned from, and how many more a goal may take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import linear_regression

from sqlalchemy import func, select

from storage.records import RunState
from storage.sql.tables import RunRow
from storage.store import Store
from storage.versions.promotion import SOUND

Line = Sequence[tuple[int, float]]
"""Points of a line: answers learned from, acceptance."""
NEWEST, RISING = 5, 3
"""Versions that a line is fitted to at most; how many of the newest must rise."""
FAR = 10.0
"""Times the answers so far within which a line is believed."""


def gate_line(store: Store, draft: str) -> Line:
    """Return a point for each published version that was not taken back, oldest first: acceptance by the gate."""
    ended = RunRow.state.in_([RunState.PUBLISHED.value, RunState.REJECTED.value])
    query = select(RunRow.id, func.json_array_length(RunRow.request_ids)).where(RunRow.draft == draft, ended)
    learned, by_run = 0, dict[str | None, int]()
    with store.db.session(read_only=True) as session:
        for run, requests in session.execute(query.order_by(RunRow.started_at)):
            by_run[run] = learned = learned + requests
    sound = [version for version in store.versions.list(draft) if version.state in SOUND]
    return [
        (by_run[one.run_id], float(one.evidence["after"]))
        for one in sound if by_run.get(one.run_id) and one.evidence.get("after") is not None
    ]  # fmt: skip


def answers_to_go(line: Line, goal: float) -> int | None:
    """Return how many more answers bring acceptance to ``goal``, by a straight line over the logarithm of answers; None
    where the newest versions do not rise, and where the goal is reached or too far away for any line."""
    newest = line[-NEWEST:]
    rising = all(after > before for (_, before), (_, after) in pairwise(newest[-RISING:]))
    if len(newest) < RISING or not rising:
        return None
    slope, start = linear_regression([math.log(answers) for answers, _ in newest], [one for _, one in newest])
    answers = newest[-1][0]
    further = (goal - start) / slope - math.log(answers) if slope > 0 else 0.0
    return round(answers * math.expm1(further)) if 0 < further < math.log(FAR) else None
