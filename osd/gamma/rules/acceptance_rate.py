"""How likely is one drafted token to be accepted? Estimates of Acc(x_t | X_<t) from recent rounds.

Pure arithmetic; equation numbers are those of on-the-fly adaptation. A round is (drafted, accepted).

Decoding stops a round at its first rejection, so a round of γ tokens with V accepted has the likelihood
β^V (1 − β)^[V < γ]. Its maximum over several rounds is Eq. 2, :func:`ratio`. Eq. 10 instead reads y = V + 1 as
a geometric variable truncated at γ + 1, whose maximum, Eq. 11, is :func:`truncated`. Decoding emits more than
Eq. 10 expects, so over many rounds Eq. 11 comes out above the chance that made them, and reaches 1 once the mean
of y reaches (γ + 2) / 2. It is written for one γ; windows differ from round to round here, and the root sought is
that of Σ y_j = Σ E[y | γ_j, β]. For one γ that is Eq. 12 with the first term of its numerator read as
(γ + 1) β^(γ+2), as Eq. 11 has it (the γ printed there does not follow).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

Rounds = Sequence[tuple[int, int]]
"""Rounds as (drafted, accepted), drafted ≥ 1."""

_GRID = 128


def ratio(accepted: int, rejections: int) -> float | None:
    """Return Eq. 2: ΣV ÷ (ΣV + number of rounds with V < γ). None when nothing was drafted."""
    trials = accepted + rejections
    return accepted / trials if trials else None


def truncated_mean(beta: float, gamma: int) -> float:
    """Return E[y] under Eq. 10, which is Eq. 12: from 1 at β = 0 up to (γ + 2) / 2 at β = 1."""
    weight = total = mean = 1.0
    for y in range(2, gamma + 2):
        weight *= beta
        total += weight
        mean += y * weight
    return mean / total


@lru_cache(maxsize=256)
def _table(gamma: int) -> tuple[float, ...]:
    return tuple(truncated_mean(i / _GRID, gamma) for i in range(_GRID + 1))


def truncated(rounds: Rounds) -> float | None:
    """Find the root of Eq. 11 in [0, 1] from tables of Eq. 12 (a search, then a straight line between
    entries)."""
    if not rounds:
        return None
    wanted = float(sum(accepted + 1 for _, accepted in rounds))
    tables = [_table(drafted) for drafted, _ in rounds]
    low, high = 0, _GRID
    at_low, at_high = float(len(rounds)), sum(table[_GRID] for table in tables)
    if wanted >= at_high:
        return 1.0
    while high - low > 1:
        middle = (low + high) // 2
        value = sum([table[middle] for table in tables])
        low, at_low, high, at_high = (low, at_low, middle, value) if value > wanted else (middle, value, high, at_high)
    return (low + (wanted - at_low) / (at_high - at_low)) / _GRID
