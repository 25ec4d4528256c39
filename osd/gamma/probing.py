"""Measuring what the best choice leaves unmeasured, within a budget.

While γ is 0 nothing is learned about acceptance; while it is not, nothing about b(B, 1), which it must beat.
A probe is one round of the other kind. Every millisecond of decoding earns 0.01 ms of credit, and a probe
is made only when the credit covers what it loses, reckoned as if it brought nothing:

    at γ = 0    one drafted token     loses  a(B) + b(B, 2) − b(B, 1)          every 100 × that ms
    at γ > 0    one plain round       loses  (gain − 1) · b(B, 1)              only while b(B, 1) is new or old

so all probes together stay under 1 % of decoding time, plus one probe.
"""

from __future__ import annotations

from collections.abc import Sequence

from osd.gamma.costs import TRUSTED, CostModel

SHARE = 0.01
"""Of decoding time, for probes."""
BANKED = 4.0
"""Credit is kept for so many probes at most, so that a long quiet time does not end in a burst."""
STALE_ROUNDS = 512
"""Rounds after which b(B, 1) is timed again."""


class Prober:
    """The credit, and what it is spent on."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._paid = 0.0

    def instead(self, gamma: int, gain: float, batch: int, table: Sequence[float]) -> int:
        """The γ to use: the best one, or a probe's.

        gain: tokens a millisecond of the best γ ÷ that of γ = 0. table[γ]: milliseconds of a round.
        """
        if gamma == 0:
            return 1 if self._affords(table[1] - table[0]) else 0
        if self._plain_known(batch):
            return gamma
        return 0 if self._affords((gain - 1) * table[0]) else gamma

    def _affords(self, loss: float) -> bool:
        earned = SHARE * self._costs.spent_ms
        self._paid = max(self._paid, earned - BANKED * loss)
        if loss <= 0 or self._paid + loss <= earned:
            self._paid += max(loss, 0.0)
            return True
        return False

    def _plain_known(self, batch: int) -> bool:
        count, seen_at = self._costs.verified(batch, 1)
        return count >= TRUSTED and self._costs.rounds - seen_at < STALE_ROUNDS
