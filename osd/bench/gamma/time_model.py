"""SpecDec++'s time model: T = t_draft · N_draft + t_target · N_target, and the rates that it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def discard_rate(drafted: int, accepted: int, emitted: int) -> float:
    """N_discarded ÷ N (section 5.1): drafted tokens thrown away for each token that came out."""
    return (drafted - accepted) / emitted


def verification_rate(rounds: int, emitted: int) -> float:
    """N_target ÷ N (section 5.1): target passes for each token that came out."""
    return rounds / emitted


@dataclass(frozen=True, slots=True)
class TimeModel:
    """Eq. 3.1, fitted."""

    draft_ms: float
    """t_draft: milliseconds of a draft pass."""
    target_ms: float
    """t_target: milliseconds of a target pass."""
    r2: float
    """1 − residual ÷ variation of T about its mean."""

    def total_ms(self, drafted: int, rounds: int) -> float:
        """Eq. 3.1: T_total."""
        return self.draft_ms * drafted + self.target_ms * rounds

    def latency_ms(self, discard: float, verification: float) -> float:
        """Eq. 5.1: T_total ÷ N from the two rates."""
        raise NotImplementedError


def fit_time_model(drafted: Sequence[int], rounds: Sequence[int], total_ms: Sequence[float]) -> TimeModel:
    """Non-negative least squares without an intercept over texts (D.2): N_draft, N_target and T_total of each.

    Raises BadInput for fewer than three texts, or lists of different length.
    """
    raise NotImplementedError
