"""SpecDec++'s time model, T = t_draft · N_draft + t_target · N_target, and the rates that it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage.errors import BadInput


def discard_rate(drafted: int, accepted: int, emitted: int) -> float:
    """N_discarded ÷ N (section 5.1): drafted tokens thrown away for each token that came out; 0 when none did."""
    return (drafted - accepted) / emitted if emitted else 0.0


def verification_rate(rounds: int, emitted: int) -> float:
    """N_target ÷ N (section 5.1): target passes for each token that came out; 0 when none did."""
    return rounds / emitted if emitted else 0.0


@dataclass(frozen=True, slots=True)
class TimeModel:
    """Eq. 3.1, fitted."""

    draft_ms: float
    """t_draft: milliseconds of a draft pass."""
    target_ms: float
    """t_target: milliseconds of a target pass."""
    r2: float
    """1 − Σ(T − fitted)² ÷ Σ(T − mean T)², at most 1; below 0 where the model says less than the mean does."""

    def total_ms(self, drafted: int, rounds: int) -> float:
        """Eq. 3.1: T_total."""
        return self.draft_ms * drafted + self.target_ms * rounds

    def latency_ms(self, discard: float, verification: float) -> float:
        """Eq. 5.1: T_total ÷ N = t_draft + t_draft · discard rate + (t_target − t_draft) · verification rate."""
        return self.draft_ms * (1 + discard) + (self.target_ms - self.draft_ms) * verification


def fit_time_model(drafted: Sequence[int], rounds: Sequence[int], total_ms: Sequence[float]) -> TimeModel:
    """Least squares without an intercept and with no negative time, over texts (section 5.2 and D.2).

    N_draft, N_target and T_total of each text. Raises BadInput for fewer than three texts, lists of different length,
    or times that are all the same, of which nothing is to be explained.
    """
    from scipy.optimize import nnls

    if not len(drafted) == len(rounds) == len(total_ms) >= 3:
        sizes = f"{len(drafted)}, {len(rounds)} and {len(total_ms)}"
        raise BadInput(reason=f"A time model needs as many counts as times, three or more; there are {sizes}.")
    counts, times = np.array([drafted, rounds], float).T, np.asarray(total_ms, float)
    variation = float(((times - times.mean()) ** 2).sum())
    if not variation > 0:
        raise BadInput(reason="A time model needs texts of different times; these all took the same.")
    (draft_ms, target_ms), residual = nnls(counts, times)
    return TimeModel(float(draft_ms), float(target_ms), 1 - float(residual) ** 2 / variation)
