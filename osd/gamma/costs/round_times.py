"""What a round of each γ takes, and which γ is then best (on-the-fly adaptation, Eq. 1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from osd.gamma.costs.model import CostModel, rounds_left

_REFRESH = 64
"""Rounds for which a batch size's costs are used before they are looked up again; sooner while little is known."""


class Times(NamedTuple):
    """Milliseconds of rounds at one batch size."""

    until: int
    """Number of the round until which they may still be used."""
    rounds: Sequence[float]
    """Milliseconds of a round of each γ, from 0 on."""
    probe: Sequence[float]
    """Milliseconds of a plain round, and of a probe's."""


class RoundTimes:
    """Times by batch size, which are used for some rounds before costs are looked up again."""

    def __init__(self, costs: CostModel, maximum: int) -> None:
        """Prepare times for γ from 0 to ``maximum``."""
        self._costs, self._maximum = costs, maximum
        self._kept: dict[tuple[int, int | None], Times] = {}
        """Times by batch size, and by how many of its rows share the draft's passes."""

    def of(self, batch: int) -> Times | None:
        """Return the times of a batch size; None until every γ's is known."""
        now, key = self._costs.rounds, (batch, self._costs.sharing)
        kept = self._kept.get(key)
        if kept is not None and now < kept.until:
            return kept
        found = [self._costs.round_ms(batch, gamma) for gamma in range(self._maximum + 1)]
        known = [ms for ms in found if ms is not None]
        if len(known) < len(found):
            return None
        known = list(accumulate(known, max))  # more tokens take no less, whatever few timings show
        until = now + rounds_left(now, now, _REFRESH)
        self._kept[key] = fresh = Times(until, known, self._of_a_probe(known, batch))
        return fresh

    def _of_a_probe(self, rounds: Sequence[float], batch: int) -> Sequence[float]:
        """Return milliseconds of a round of γ = 0, and of one in which a single row has one drafted token."""
        plain, more = self._costs.verify_ms(batch, batch), self._costs.verify_ms(batch, batch + 1)
        step = self._costs.draft_ms(batch, 1)
        return rounds if plain is None or more is None or step is None else (rounds[0], rounds[0] + step + more - plain)


def best_gamma(betas: Sequence[float], costs: Sequence[float]) -> tuple[int, float]:
    """Return the argmax over γ of Eq. 1, its numerator summed over the rows; the least γ where several are equal.

    betas: one acceptance a row, below 1; costs[γ]: milliseconds of a round with γ drafted tokens, which do not fall.
    Also returns its tokens a millisecond ÷ those of γ = 0.
    """
    if len(betas) == 1:
        return _best_of_one(betas[0], costs)
    kept = [1.0] * len(betas)
    tokens, most = 0.0, sum([1 / (1 - beta) for beta in betas])
    best, best_rate, plain_rate = 0, 0.0, len(betas) / costs[0]
    for gamma, cost in enumerate(costs):
        if most <= best_rate * cost:  # no draft can make up for that, and longer ones cost no less
            break
        tokens += sum(kept)
        if tokens > best_rate * cost:
            best, best_rate = gamma, tokens / cost
        kept = list(map(mul, kept, betas))
    return best, best_rate / plain_rate


def _best_of_one(beta: float, costs: Sequence[float]) -> tuple[int, float]:
    """Return :func:`best_gamma` for one row, which is asked every round: in a third of the time."""
    kept, tokens, most = 1.0, 0.0, 1 / (1 - beta)
    best, best_rate = 0, 0.0
    for gamma, cost in enumerate(costs):
        if most <= best_rate * cost:
            break
        tokens += kept
        if tokens > best_rate * cost:
            best, best_rate = gamma, tokens / cost
        kept *= beta
    return best, best_rate * costs[0]
