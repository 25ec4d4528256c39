"""GammaTune and GammaTune+: a moving average of how many tokens are accepted (Token-Driven GammaTune).

Needs no costs and no training. Each request has its own average, starting at ``initial``.
"""

from __future__ import annotations

import math

from osd.gamma.base import DraftDecision, Observation, RowByRow, Signal

GAMMA_MIN = 1  # at 0 no token would be drafted, none accepted, and the average could never rise again
_ROUNDING = 1e-9  # an average of 4 that arithmetic left at 4.0000000001 must not become 5


class GammaTuneRow:
    """The average γ̄ of one request."""

    __slots__ = ("_average", "_tune")

    def __init__(self, tune: GammaTuneController) -> None:
        self._tune = tune
        self._average = float(tune.initial)

    def next_gamma(self, batch: int) -> int:
        """Return γ = ⌈γ̄⌉, Algorithm 1 line 5."""
        return math.ceil(self._average - _ROUNDING)

    def keep_drafting(self, signal: float) -> DraftDecision:
        """Stop after a token for which the draft's largest probability was below τ (GammaTune+, 4.2)."""
        return DraftDecision.ON if self._tune.tau is None or signal >= self._tune.tau else DraftDecision.LAST

    def observe(self, seen: Observation) -> None:
        """Update the average by Eqs. 7 and 8, Algorithm 1 lines 1 to 4.

        The γ that A is compared with is the window that was in fact drafted, so a round cut short by a
        length limit or by low confidence, and accepted whole, also counts as one that could have been longer.
        """
        if not seen.drafted:
            return
        tune = self._tune
        accepted = seen.accepted if seen.rejected else seen.accepted + tune.delta
        average = (1 - tune.eta) * self._average + tune.eta * accepted
        self._average = min(float(tune.maximum), max(float(GAMMA_MIN), average))


class GammaTuneController(RowByRow):
    """The GammaTune rule, or GammaTune+ where ``tau`` is given."""

    def __init__(self, initial: int, maximum: int, *, eta: float, delta: int, tau: float | None = None) -> None:
        self.name: str = "gammatune" if tau is None else "gammatune_plus"
        self.signal: Signal = "none" if tau is None else "peak"
        self.initial = min(maximum, max(GAMMA_MIN, initial))
        self.maximum = maximum
        self.eta = eta
        self.delta = delta
        self.tau = tau

    def start(self) -> GammaTuneRow:
        """Return the state of a new request."""
        return GammaTuneRow(self)
