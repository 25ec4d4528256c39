"""Training runs: their duration, data and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Float, case, cast, func, select

from storage.outcomes.outcome_window import Window, hurry
from storage.records import RunState
from storage.run_reason import BEGAN
from storage.sql.database import Database
from storage.sql.tables import RunRow

COLUMNS = (
    RunRow.id, RunRow.draft, RunRow.state, RunRow.started_at, RunRow.finished_at, RunRow.version, RunRow.result,
    RunRow.settings, func.json_array_length(RunRow.request_ids),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """One training run."""

    run: str
    draft: str
    state: str
    started_at: float
    seconds: float | None
    """Seconds from claim to end, gate included; None while it runs."""
    training_seconds: float | None
    """The part of ``seconds`` spent in training."""
    requests: int
    """Number of requests claimed."""
    positions: int | None
    """Positions trained on, counted once an epoch, replayed ones included."""
    steps: int | None
    gain: float | None
    """Acceptance gain measured by the gate: the candidate's rate minus the current version's."""
    version: str | None
    reason: str | None
    """Reason for a failure, or for a rejection without a gate."""
    why: str | None
    """Why it began: the ``why`` of a :class:`~storage.run_reason.RunReason`; None where an earlier release began it."""
    began: str | None
    """The same in words."""


@dataclass(frozen=True, slots=True)
class RunTotals:
    """Totals over one draft's runs in a window."""

    draft: str
    runs: int
    published: int
    rejected: int
    failed: int
    """Runs that failed or were lost."""
    seconds: float
    """Seconds from claim to end, gates included, of the runs that ended."""
    positions: int
    steps: int
    last_start: float
    """Unix seconds."""


def runs(db: Database, window: Window, limit: int) -> list[RunAnswer]:
    """Return the newest runs that started in the window, newest first."""
    query = select(*COLUMNS).where(*_wanted(window)).order_by(RunRow.started_at.desc(), RunRow.id).limit(limit)
    with db.session(read_only=True) as session:
        hurry(session)
        return [_answer(*row) for row in session.execute(query)]


def totals(db: Database, window: Window) -> list[RunTotals]:
    """Return the totals, one row a draft."""
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
    """Return SQL that sums a number in the runs' results; a run without it counts 0."""
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
    result: Mapping[str, Any], settings: Mapping[str, Any], requests: int,
) -> RunAnswer:  # fmt: skip
    seconds = None if finished is None else finished - started
    evidence, began = result.get("evidence") or {}, settings.get(BEGAN, {})
    return RunAnswer(
        run, draft, state, started, seconds, result.get("seconds"), requests, result.get("positions"),
        result.get("steps"), evidence.get("difference"), version, result.get("reason"),
        began.get("why"), began.get("words"),
    )  # fmt: skip
