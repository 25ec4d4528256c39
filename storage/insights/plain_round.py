"""b(0): what a round without a draft would take, from the outcomes that are kept one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Float, case, cast, func, select

from storage.outcomes.outcome_window import hurry
from storage.sql.database import Database
from storage.sql.tables import OutcomeRow

ENOUGH = 200
"""Rounds without a draft from which their own mean is taken."""


@dataclass(frozen=True, slots=True)
class PlainRound:
    """Milliseconds of a request's share of a round that verifies nothing, and how they were found; not above what
    verifying takes in the mean round."""

    ms: float
    how: str
    """``measured``: rounds without a draft; ``fitted``: verify_ms = b(0) rounds + slope drafted, by least squares."""
    rounds: int
    """Rounds that say so."""


def plain_round(db: Database) -> PlainRound | None:
    """None where the log is empty, or all drafts were of one length, from which no line follows."""
    with db.session(read_only=True) as session:
        hurry(session)
        n, d, dd, v, dv, rounds, spent = (float(value or 0) for value in session.execute(select(*_sums())).one())
    if rounds < ENOUGH:
        return fit(n, d, dd, v, dv)
    return PlainRound(min(spent / rounds, v / n), "measured", int(rounds))  # a cold minute must not praise drafts


def _sums() -> list[Any]:
    """Σ n, Σ d, Σ d²/n, Σ v, Σ d v/n: the normal equations where an outcome's variance goes with its rounds n; then
    Σ n and Σ v of those that drafted nothing."""
    n, d, v = (cast(column, Float) for column in (OutcomeRow.rounds, OutcomeRow.drafted, OutcomeRow.verify_ms))
    per_round = d / func.nullif(n, 0)
    plain = [func.sum(case((OutcomeRow.drafted == 0, column), else_=0.0)) for column in (n, v)]
    return [func.sum(n), func.sum(d), func.sum(d * per_round), func.sum(v), func.sum(v * per_round), *plain]


def fit(n: float, d: float, dd: float, v: float, dv: float) -> PlainRound | None:
    """The line's value at no draft, from the sums; not above the mean round, which has drafts in it."""
    determinant = n * dd - d * d
    if n <= 0 or determinant <= 1e-6 * n * max(dd, 1.0):
        return None
    at_none = (v * dd - d * dv) / determinant
    return PlainRound(min(at_none, v / n), "fitted", int(n)) if at_none > 0 else None
