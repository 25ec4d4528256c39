"""Cost and savings of speculation and training: FLOPs, memory traffic, seconds.

FLOPs as in appendix A.4 of online speculative decoding: 2 a parameter and token, 6 for a token that is trained on; in
every round the target reads the drafted tokens and one more. Memory traffic as in A.5: a model is read once a pass by a
request that is alone in its batch; requests in one batch share the read, so there the saving is an upper bound.
Training against serving as in A.9.2. Prompts cost the same with and without a draft and are left out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Float, case, cast, func, select

from storage.insights.runs import RunTotals
from storage.outcomes.outcome_window import hurried
from storage.outcomes.outcomes import AcceptanceRow
from storage.records import ratio
from storage.sql.database import Database
from storage.sql.outcome_tables import OutcomeRow
from storage.sql.tables import DraftRow, VersionRow
from storage.versions.feature_kinds import ModelSize

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
    n, d, dd, v, dv, rounds, spent = (float(value or 0) for value in hurried(db, query)[0])
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


FORWARD, TRAINED = 2, 6
"""FLOPs a parameter and token, for a forward pass and for training (Kaplan et al., 2020)."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """FLOPs, or bytes read from memory, by part."""

    draft: float
    target: float
    training: float
    without: float
    """Amount that the target alone would have taken for the same tokens."""

    @property
    def saved(self) -> float:
        """``without`` minus everything spent. FLOPs are seldom saved; bytes are."""
        return self.without - self.draft - self.target - self.training


@dataclass(frozen=True, slots=True)
class CostRow:
    """The costs and savings of one draft."""

    draft: str
    rounds: int
    drafted: int
    emitted: int
    flops: Arithmetic | None
    """FLOPs spent and saved; None, like ``bytes``, where a model's size is unknown."""
    bytes: Arithmetic | None
    decode_seconds: float
    """Seconds of drafting and verifying, counting each request's share of its batch's time."""
    without_seconds: float | None
    """emitted × b(0); None where b(0) is unknown."""
    training_seconds: float
    """Seconds of training runs, gates included."""
    training_runs: int

    @property
    def saved_seconds(self) -> float | None:
        """Decode seconds that speculation saved; negative where it cost time."""
        return None if self.without_seconds is None else self.without_seconds - self.decode_seconds

    @property
    def net_gain_seconds(self) -> float | None:
        """Decode seconds saved − training seconds."""
        return None if self.saved_seconds is None else self.saved_seconds - self.training_seconds

    @property
    def update_share(self) -> float | None:
        """Training seconds ÷ decode seconds (A.9.2 gives the inverse: 208 and 82)."""
        return ratio(self.training_seconds, self.decode_seconds)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as one flat dictionary."""
        facts = asdict(self)
        for name in ("flops", "bytes"):
            account: Arithmetic | None = getattr(self, name)
            del facts[name]
            for part in ("draft", "target", "training", "without", "saved"):
                facts[f"{name}_{part}"] = None if account is None else getattr(account, part)
        names = ("saved_seconds", "net_gain_seconds", "update_share")
        return facts | {name: getattr(self, name) for name in names}


def cost_row(
    draft: str,
    served: AcceptanceRow,
    trained: RunTotals | None,
    target: ModelSize | None,
    small: ModelSize | None,
    plain: UndraftedRound | None,
) -> CostRow:
    """Compute a draft's costs from its summed outcomes, its training runs, both models' sizes and b(0)."""
    return CostRow(
        draft=draft,
        rounds=served.rounds,
        drafted=served.drafted,
        emitted=served.emitted,
        flops=_flops(served, trained, target, small) if target and small else None,
        bytes=_bytes(served, trained, target, small) if target and small else None,
        decode_seconds=(served.draft_ms + served.verify_ms) / 1000,
        without_seconds=None if plain is None else served.emitted * plain.ms / 1000,
        training_seconds=trained.seconds if trained else 0.0,
        training_runs=trained.runs if trained else 0,
    )


def _flops(served: AcceptanceRow, trained: RunTotals | None, target: ModelSize, small: ModelSize) -> Arithmetic:
    """Compute Equation 6: drafted · F_q + (drafted + rounds) · F_p + trained · 3 F_q."""
    return Arithmetic(
        draft=FORWARD * float(small.parameters) * served.drafted,
        target=FORWARD * float(target.parameters) * (served.drafted + served.rounds),
        training=TRAINED * float(small.parameters) * (trained.positions if trained else 0),
        without=FORWARD * float(target.parameters) * served.emitted,
    )


def _bytes(served: AcceptanceRow, trained: RunTotals | None, target: ModelSize, small: ModelSize) -> Arithmetic:
    """Compute Table 5: rounds · M + drafted · m + steps · m, against emitted · M."""
    return Arithmetic(
        draft=float(small.bytes) * served.drafted,
        target=float(target.bytes) * served.rounds,
        training=float(small.bytes) * (trained.steps if trained else 0),
        without=float(target.bytes) * served.emitted,
    )
