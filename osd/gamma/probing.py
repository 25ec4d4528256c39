"""Measuring what the best choice leaves unmeasured, within a budget.

While γ is 0 nothing is learned about acceptance; while it is not, nothing about b(B, 1), which it must beat.
A probe is one round of the other kind. Every millisecond of decoding earns 0.01 ms of credit, and a probe
is made only when the credit covers what it may lose, reckoned as if it brought nothing:

    at γ = 0    one drafted token    loses  a(B) + b(B, 2) − b(B, 1)    one in every 100 × that many ms
    at γ > 0    one plain round      loses  (gain − 1) · b(B, 1)        only while b(B, 1) is new or old

so that over any T ms of decoding probes cost at most 0.01 T and the few that were saved up. The one exception
is an engine's first plain round, which comes as soon as a choice is to be made: until then b(B, 1) is a guess.
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
        if not self._costs.plain_rounds:
            return 0
        return 0 if self._affords((gain - 1) * table[0]) else gamma

    def blind(self, batch: int) -> int:
        """1 or 0 while drafting was never timed: a draft step is taken to cost what a plain round does."""
        plain = self._costs.verify_ms(batch, 1)
        return 1 if plain is not None and self._affords(plain) else 0

    def _affords(self, loss: float) -> bool:
        if loss <= 0:
            return True
        earned = SHARE * self._costs.spent_ms
        self._paid = max(self._paid, earned - BANKED * loss)
        if self._paid + loss > earned:
            return False
        self._paid += loss
        return True

    def _plain_known(self, batch: int) -> bool:
        count, seen_at = self._costs.verified(batch, 1)
        return count >= TRUSTED and self._costs.rounds - seen_at < STALE_ROUNDS
