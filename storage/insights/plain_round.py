"""b(0), the time of a round without a draft, estimated from the log of single outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Float, case, cast, func, select

from storage.outcomes.outcome_window import hurry
from storage.sql.database import Database
from storage.sql.outcome_tables import OutcomeRow
from storage.sql.tables import DraftRow, VersionRow

ENOUGH = 200
"""Undrafted rounds from which their own mean is used."""


@dataclass(frozen=True, slots=True)
class UndraftedRound:
    """One request's share of a round without drafted tokens, in milliseconds, and how it was estimated.

    Never more than verification takes in the mean round.
    """

    ms: float
    how: str
    """``measured`` from rounds without a draft, or ``fitted`` as verify_ms = b(0) rounds + slope drafted by least
    squares."""
    rounds: int
    """Number of rounds that the estimate rests on."""


def plain_round(db: Database, target: str | None = None) -> UndraftedRound | None:
    """Estimate b(0), without what drafts of other targets than ``target`` left, if one is given; None where the log is
    empty, or all drafts had one length, which determines no line."""
    query = select(*_sums())
    if target is not None:
        of_others = VersionRow.draft.in_(select(DraftRow.name).where(DraftRow.target != target))
        others = select(VersionRow.id).where(of_others)
        query = query.where(OutcomeRow.draft_version.not_in(others))
    with db.session(read_only=True) as session:
        hurry(session)
        n, d, dd, v, dv, rounds, spent = (float(value or 0) for value in session.execute(query).one())
    if rounds < ENOUGH:
        return fit(n, d, dd, v, dv)
    return UndraftedRound(min(spent / rounds, v / n), "measured", int(rounds))  # a cold minute must not flatter drafts


def _sums() -> list[Any]:
    """Return the sums for :func:`fit`, then Σ n and Σ v of the outcomes that drafted nothing.

    The first are Σ n, Σ d, Σ d²/n, Σ v and Σ d v/n: the normal equations for a variance proportional to the rounds n.
    """
    n, d, v = (cast(column, Float) for column in (OutcomeRow.rounds, OutcomeRow.drafted, OutcomeRow.verify_ms))
    per_round = d / func.nullif(n, 0)
    plain = [func.sum(case((OutcomeRow.drafted == 0, column), else_=0.0)) for column in (n, v)]
    return [func.sum(n), func.sum(d), func.sum(d * per_round), func.sum(v), func.sum(v * per_round), *plain]


def fit(n: float, d: float, dd: float, v: float, dv: float) -> UndraftedRound | None:
    """Return the fitted line's value at no draft, at most the mean round, which includes drafts."""
    determinant = n * dd - d * d
    if n <= 0 or determinant <= 1e-6 * n * max(dd, 1.0):
        return None
    at_none = (v * dd - d * dv) / determinant
    return UndraftedRound(min(at_none, v / n), "fitted", int(n)) if at_none > 0 else None
