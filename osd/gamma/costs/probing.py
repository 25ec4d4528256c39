"""Measures what the best choice leaves unmeasured, within a budget.

While γ is 0 nothing is learned about acceptance; while it is not, nothing about b(B, B), which it must beat.
A probe is a try of the other kind. Every millisecond of decoding in rounds that the rule sizes earns 0.01 ms of
credit, and a probe is made only when the credit covers what it may lose, reckoned as if it brought nothing:

    at γ = 0    n rounds of one token in one row loses    catch-up + n (a(B) + b(B, B + 1) − b(B, B))
    at γ > 0    one plain round                    loses  (gain − 1) · b(B, B)

where catch-up is what the drafter needs to read the text of the rounds that had no draft. So a probe of c ms comes
once in 100 c ms of decoding, the second kind only while b(B, B) is new or old, and over T ms probes lose at most
0.01 T and what was saved up. What a probe at γ = 0 took beyond its reckoning is paid afterwards: a text of a length
that was never read takes several times the usual catch-up. The one exception is an engine's first plain round, which
comes as soon as a choice is to be made: until then b(B, B) is a guess.
"""

from __future__ import annotations

from collections.abc import Sequence

from osd.gamma.costs.model import TRUSTED, CostModel

SHARE = 0.01
"""Share of decoding time that probes may lose."""
BURST = 2
"""Rounds of a probe at γ = 0, usually: the drafter reads up once, and the second round times drafting alone."""
BANKED = 4.0
"""Most probes for which credit is kept, so that a long quiet time does not end in a burst."""
STALE_ROUNDS = 512
"""Rounds after which b(B, B) is timed again."""


class Prober:
    """The credit, and the probes that it is spent on."""

    def __init__(
        self, costs: CostModel, share: float = SHARE, first_ms: float = 0.0, rounds: int = BURST, free: int = 0
    ) -> None:
        """Set the budget: ``share`` of decoding time, twice that in its first ``first_ms`` milliseconds. A probe at γ =
        0 has ``rounds`` rounds, and the first ``free`` of those that may be free cost no credit."""
        self._costs, self._share, self._first_ms, self._rounds = costs, share, first_ms, rounds
        self._free = free
        self._paid = 0.0
        self._burst = 0
        self.short_ms = 0.0
        """Milliseconds of decoding that the last probe considered still lacks; 0 where it was made."""
        self._known: dict[int, int] = {}
        """Round until which b(B, B) need not be timed, by batch size."""
        self._open: tuple[float, float] | None = None
        """The probe of this round: milliseconds of decoding before it, and what its round should take."""
        self._seen = costs.clock
        """The engine's rounds and milliseconds when the last round was settled."""
        self._others_ms = 0.0
        """Milliseconds of decoding in rounds that another rule sized alone, taken to be as long as ours: they earn
        nothing here."""

    def settle(self, own: int = 1) -> None:
        """Charge the last probe what it really took, where no other rule's round came between.

        ``own``: rounds that this rule sized since the last call. To be called before it sizes another one.
        """
        (rounds, ms), (now, whole_ms) = self._seen, self._costs.clock
        self._seen = now, whole_ms
        if now - rounds > own:
            self._others_ms += (whole_ms - ms) * (now - rounds - own) / (now - rounds)
        elif self._open:
            before, reckoned = self._open
            self._paid += whole_ms - before - reckoned
        self._open = None

    def instead(self, gamma: int, gain: float, batch: int, table: Sequence[float], free: bool = False) -> int:
        """Return the γ to use: the best one, or a probe's.

        gain: tokens a millisecond of the best γ ÷ that of γ = 0. table[0]: milliseconds of a plain round; table[1],
        at γ = 0: of a probe's. ``free``: whether one may begin that costs no credit.
        """
        if gamma == 0:
            return self._probe(table[0], table[1] - table[0], free)
        self._burst = 0
        if self._plain_known(batch):
            return gamma
        if not self._costs.plain_rounds:
            return 0
        return 0 if self._affords((gain - 1) * table[0]) else gamma

    def blind(self, batch: int) -> int:
        """Return 1 or 0 while drafting was never timed: a draft step is taken to cost what a plain round does."""
        plain = self._costs.verify_ms(batch, batch)
        return 0 if plain is None else self._probe(plain, plain)

    def _probe(self, plain: float, loss: float, free: bool = False) -> int:
        charged = 0.0
        if self._burst == 0:
            price, given = self._costs.catch_up_ms + self._rounds * loss, free and self._free > 0
            if not (given or self._affords(price)):
                return 0
            self._free -= given
            self._burst, charged = self._rounds, max(0.0, price)
        self._burst -= 1
        self._open = self._costs.whole_ms, plain + charged
        return 1

    def _affords(self, loss: float) -> bool:
        if loss <= 0:
            return True
        spent = self._costs.spent_ms * (1 - self._others_ms / (self._costs.whole_ms or 1.0))
        earned = self._share * (spent + min(spent, self._first_ms))
        self._paid = max(self._paid, earned - BANKED * loss)
        lasts = (self._paid + loss) / self._share
        self.short_ms = max(0.0, lasts - min(lasts / 2, self._first_ms) - spent)
        if self.short_ms:
            return False
        self._paid += loss
        return True

    def _plain_known(self, batch: int) -> bool:
        if self._known.get(batch, 0) <= self._costs.rounds:
            count, seen_at = self._costs.verified(batch, batch)
            self._known[batch] = seen_at + STALE_ROUNDS if count >= TRUSTED else 0
        return self._known[batch] > self._costs.rounds
