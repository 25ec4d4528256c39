"""Training runs: how long they took, what came of them, and when they will have paid for themselves.

Traffic that took s seconds at acceptance α would have taken s L(α) ÷ L(α − g) without a gain of g (L:
:func:`storage.insights.statistics.tokens_per_round`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Float, Row, case, cast, func, select

from storage import records
from storage.insights.statistics import tokens_per_round
from storage.names import head_of
from storage.outcomes.outcome_window import EVERYTHING, Window, hurried
from storage.outcomes.outcomes import AcceptanceRow
from storage.records import RunState
from storage.runs import BEGAN
from storage.sql.database import Database
from storage.sql.spans import HOUR
from storage.sql.tables import RunRow
from storage.store import Store

COLUMNS = (
    RunRow.id, RunRow.draft, RunRow.state, RunRow.started_at, RunRow.finished_at, RunRow.version, RunRow.result,
    RunRow.settings, func.json_array_length(RunRow.request_ids).label("requests"),
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
    """Reason for a failure or a rejection, as :func:`why_none` has it."""
    why: str | None
    """Why it began: the ``why`` of a :class:`~storage.runs.RunReason`; None where an earlier release began it."""
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
    return [_answer(row) for row in hurried(db, query)]


def totals(db: Database, window: Window) -> list[RunTotals]:
    """Return the totals, one row a draft."""
    ended = case((RunRow.finished_at.is_not(None), RunRow.finished_at - RunRow.started_at), else_=0.0)
    query = select(
        RunRow.draft, func.count(), _in(RunState.PUBLISHED), _in(RunState.REJECTED),
        _in(RunState.FAILED, RunState.LOST), func.sum(ended), _number("positions"), _number("steps"),
        func.max(RunRow.started_at),
    ).where(*_wanted(window)).group_by(RunRow.draft).order_by(RunRow.draft)  # fmt: skip
    return [
        RunTotals(
            draft, runs, int(published), int(rejected), int(failed), float(seconds), int(positions), int(steps), last
        )
        for draft, runs, published, rejected, failed, seconds, positions, steps, last in hurried(db, query)
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


def _answer(row: Row[Any]) -> RunAnswer:
    seconds = None if row.finished_at is None else row.finished_at - row.started_at
    result, began = row.result, row.settings.get(BEGAN, {})
    return RunAnswer(
        row.id, row.draft, row.state, row.started_at, seconds, result.get("seconds"), row.requests,
        result.get("positions"), result.get("steps"), (result.get("evidence") or {}).get("difference"), row.version,
        why_none(row.state, result), began.get("why"), began.get("words"),
    )  # fmt: skip


HALF = 0.5
"""Share of the target's probability that was not kept, from which a gate can hardly tell anything."""


def why_none(state: str, result: Mapping[str, Any]) -> str | None:
    """Return why a run ended without a version that serves, by its state and result; None where it has one."""
    evidence = result.get("evidence") or {}
    reason, gain = result.get("reason") or evidence.get("reason"), evidence.get("difference", evidence.get("gain"))
    if state != RunState.REJECTED.value or reason or gain is None or "confidence" not in evidence:
        return reason
    how = "worse" if evidence["worse"] else "unproven"
    needed = f"a gain above {evidence.get('min_gain', 0):g} had to be sure at {100 * evidence['confidence']:g} %"
    unread = evidence.get("unknown_after") or 0.0
    hint = f"; of the target's probability {unread:.0%} was not kept: learn.teacher = recompute reads all of it"
    return (
        f"{how}: it gained {gain:+.4f} on {evidence['requests']} requests, and {needed}{hint if unread > HALF else ''}"
    )


def without_version(db: Database, draft: str) -> RunAnswer | None:
    """Return the last run of a draft that ended, where it brought no version that serves; else None."""
    last = next((run for run in runs(db, Window(draft=draft), 2) if run.seconds is not None), None)
    return last if last and last.state != RunState.PUBLISHED.value else None


@dataclass(frozen=True, slots=True)
class PayBack:
    """What training a draft has cost and saved, in seconds, and when it will have paid for itself."""

    draft: str
    cost_seconds: float
    """Seconds of training runs, gates and acceptance heads included."""
    learned_seconds: float
    """Decode seconds saved by the gains, as the gate measured them, of the versions that served."""
    pace: float
    """``learned_seconds`` − ``cost_seconds`` of the last hour, a second."""

    @property
    def pays_in_seconds(self) -> float | None:
        """Seconds until it has paid for itself at this pace; 0 where it has, None where it will not."""
        owed = self.cost_seconds - self.learned_seconds
        return 0.0 if owed <= 0 else owed / self.pace if self.pace > 0 else None


def pay_backs(store: Store) -> list[PayBack]:
    """Return the account of each draft that was trained, by name."""
    at = records.now()
    lately = Window(since=at - HOUR)
    return [_pay_back(store, draft, lately, at) for draft in _trained(store, EVERYTHING)]


def _pay_back(store: Store, draft: str, lately: Window, at: float) -> PayBack:
    gains = _gains(store, draft)
    began = min(version.created_at for version in store.versions.list(draft))
    spent, spent_lately = (_trained(store, window).get(draft, 0.0) for window in (EVERYTHING, lately))
    saved, saved_lately = (_saved(store, replace(window, draft=draft), gains) for window in (EVERYTHING, lately))
    return PayBack(draft, spent, saved, (saved_lately - spent_lately) / min(HOUR, max(1.0, at - began)))


def _trained(store: Store, window: Window) -> dict[str, float]:
    """Return seconds of training by draft, those of its acceptance head with its own."""
    seconds = {row.draft: row.seconds for row in totals(store.db, window)}
    heads = {head_of(draft) for draft in seconds}
    return {name: own + seconds.get(head_of(name), 0.0) for name, own in seconds.items() if name not in heads}


def _gains(store: Store, draft: str) -> dict[str, float]:
    """Return the gain of each version over number 0: the sum of what the gate measured along its lineage."""
    gains: dict[str, float] = {}
    for version in sorted(store.versions.list(draft), key=lambda version: version.number):
        own = float(version.evidence.get("difference") or 0.0)
        gains[version.id] = own + gains.get(version.parent or "", 0.0)
    return gains


def _saved(store: Store, window: Window, gains: dict[str, float]) -> float:
    rows = store.outcomes.acceptance(["version"], window)
    return sum(_saved_by(row, gains.get(row.by["version"], 0.0)) for row in rows)


def _saved_by(row: AcceptanceRow, gain: float) -> float:
    """Return the seconds that the same tokens would have taken more without the gain."""
    if row.alpha is None or not row.rounds:
        return 0.0
    gamma, seconds = row.drafted / row.rounds, (row.draft_ms + row.verify_ms) / 1000
    before = min(1.0, max(0.0, row.alpha - gain))
    return seconds * (tokens_per_round(row.alpha, gamma) / tokens_per_round(before, gamma) - 1)
