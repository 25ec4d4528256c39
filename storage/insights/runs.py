"""Training runs: how long they took, what they trained on, what came of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Float, case, cast, func, select

from storage.outcomes.outcome_window import Window, hurry
from storage.records import RunState
from storage.sql.database import Database
from storage.sql.tables import RunRow

COLUMNS = (
    RunRow.id, RunRow.draft, RunRow.state, RunRow.started_at, RunRow.finished_at, RunRow.version, RunRow.result,
    func.json_array_length(RunRow.request_ids),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """One run."""

    run: str
    draft: str
    state: str
    started_at: float
    seconds: float | None
    """From claim to end, gate included; None while it runs."""
    training_seconds: float | None
    """Of those, spent in training."""
    requests: int
    """Claimed."""
    positions: int | None
    """Trained on, once an epoch, replayed ones included."""
    steps: int | None
    gain: float | None
    """What the gate measured: the candidate's acceptance less the current version's."""
    version: str | None
    reason: str | None
    """Why it failed, or was rejected without a gate."""


@dataclass(frozen=True, slots=True)
class RunTotals:
    """All runs of one draft in a window."""

    draft: str
    runs: int
    published: int
    rejected: int
    failed: int
    """Failed or lost."""
    seconds: float
    """From claim to end, gates included, of those that ended."""
    positions: int
    steps: int
    last_start: float
    """Unix seconds."""


def runs(db: Database, window: Window, limit: int) -> list[RunAnswer]:
    """The newest runs that started in the window, newest first."""
    query = select(*COLUMNS).where(*_wanted(window)).order_by(RunRow.started_at.desc(), RunRow.id).limit(limit)
    with db.session(read_only=True) as session:
        hurry(session)
        return [_answer(*row) for row in session.execute(query)]


def totals(db: Database, window: Window) -> list[RunTotals]:
    """One row a draft."""
    ended = case((RunRow.finished_at.is_not(None), RunRow.finished_at - RunRow.started_at), else_=0.0)
    query = select(
        RunRow.draft, func.count(), _in(RunState.PUBLISHED), _in(RunState.REJECTED),
        _in(RunState.FAILED, RunState.LOST), func.sum(ended), _number("positions"), _number("steps"),
        func.max(RunRow.started_at),
    ).where(*_wanted(window)).group_by(RunRow.draft).order_by(RunRow.draft)  # fmt: skip
    with db.session(read_only=True) as session:
        hurry(session)
        rows = session.execute(query).all()
    return [
        RunTotals(
            draft, runs, int(published), int(rejected), int(failed), float(seconds), int(positions), int(steps), last
        )
        for draft, runs, published, rejected, failed, seconds, positions, steps, last in rows
    ]


def _in(*states: RunState) -> Any:
    return func.sum(case((RunRow.state.in_([state.value for state in states]), 1), else_=0))


def _number(key: str) -> Any:
    """A number in the results, summed; runs that have none count 0."""
    return func.coalesce(func.sum(cast(RunRow.result[key].as_string(), Float)), 0)


def _wanted(window: Window) -> Sequence[Any]:
    wanted: list[Any] = []
    if window.since is not None:
        wanted.append(RunRow.started_at >= window.since)
    if window.until is not None:
        wanted.append(RunRow.started_at < window.until)
    if window.draft is not None:
        wanted.append(RunRow.draft == window.draft)
    return wanted


def _answer(
    run: str, draft: str, state: str, started: float, finished: float | None, version: str | None,
    result: Mapping[str, Any], requests: int,
) -> RunAnswer:  # fmt: skip
    seconds = None if finished is None else finished - started
    evidence = result.get("evidence") or {}
    return RunAnswer(
        run, draft, state, started, seconds, result.get("seconds"), requests, result.get("positions"),
        result.get("steps"), evidence.get("difference"), version, result.get("reason"),
    )  # fmt: skip
