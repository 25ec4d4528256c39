"""Throughput as a function of acceptance and costs, and when a larger draft pays (on-the-fly adaptation, section 5).

The quantities of the paper for one request: α, the chance that a drafted token is accepted; a, milliseconds of a pass
of the draft; b(γ), milliseconds of the target's pass over γ drafted tokens; L tokens in n rounds, each of which drafts
d and yields ρ · d, so that L = d · n · ρ (Eq. 8). A round brings 1 + α + … + α^γ tokens in the mean (Eqs. 1, 9).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from storage.insights.statistics import tokens_per_round


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a round in milliseconds."""

    draft_ms: float
    """a, one pass of the draft."""
    verify_ms: Sequence[float]
    """b(γ) for γ = 0, 1, …; its length bounds γ."""


@dataclass(frozen=True, slots=True)
class TextScore:
    """A draft's acceptance on one text."""

    alpha: float
    """Accepted ÷ judged."""
    judged: int
    """Tokens that were accepted or rejected."""


@dataclass(frozen=True, slots=True)
class BestThroughput:
    """A draft's best throughput at one acceptance rate."""

    tokens_per_s: float
    gamma: int
    """The draft length that achieves it; 0 where not speculating is best."""


def best_pace(alpha: float, costs: Costs) -> BestThroughput:
    """Return the maximum over γ of tokens ÷ (a γ + b(γ)): Objective 1, and Eq. 3 at a constant draft length."""
    rates = [
        1e3 * tokens_per_round(alpha, gamma) / (costs.draft_ms * gamma + verify_ms)
        for gamma, verify_ms in enumerate(costs.verify_ms)
    ]
    gamma = max(range(len(rates)), key=rates.__getitem__)
    return BestThroughput(rates[gamma], gamma)


def gain(alpha: float, costs: Costs) -> float:
    """Return tokens a second at the best γ ÷ those of the target alone; at least 1, as γ may be 0."""
    return best_pace(alpha, costs).tokens_per_s * costs.verify_ms[0] / 1e3


def losses(seen: Sequence[TextScore], costs: Sequence[Costs]) -> list[float]:
    """Return each draft's loss on one text: the share of the best draft's speed that it lacks, in [0, 1)."""
    speeds = [gain(one.alpha, cost) / cost.verify_ms[0] for one, cost in zip(seen, costs, strict=True)]
    best = max(speeds)
    return [1 - speed / best for speed in speeds]


def larger_pays(
    length: float, *, rounds: tuple[float, float], rho: tuple[float, float], c: tuple[float, float]
) -> bool:
    """Return whether the second draft of two, the larger one, gives the higher throughput (Theorem 3).

    n, ρ and c = a ÷ b of the smaller and of the larger draft. From Eq. 3 with b = 1 the larger one wins if and only if
    Δn > L · Δ(c ÷ ρ), where Δn is the reduction of rounds and Δ(c ÷ ρ) the growth of that ratio. The paper writes
    (Δc ÷ Δρ) L on the right, which read literally is another number; see docs/papers.md.
    """
    reduction = rounds[0] - rounds[1]
    return reduction > length * (c[1] / rho[1] - c[0] / rho[0])


def expected_to_pay(alpha: tuple[float, float], costs: tuple[Costs, Costs]) -> bool:
    """Return whether Theorem 3 expects the second draft of two, the larger one, to be faster at these values of α.

    As the paper applies it to a prompt: d is the γ of Objective 1, n and ρ follow from α and d, and b is the target's
    pass without drafted tokens. A draft that is best left alone drafts nothing: its n is L, and its c ÷ ρ is 0.
    """
    paces = [best_pace(each, cost) for each, cost in zip(alpha, costs, strict=True)]
    tokens = [tokens_per_round(each, pace.gamma) for each, pace in zip(alpha, paces, strict=True)]
    rho = [each / pace.gamma if pace.gamma else math.inf for each, pace in zip(tokens, paces, strict=True)]
    c = [cost.draft_ms / cost.verify_ms[0] for cost in costs]
    return larger_pays(1.0, rounds=(1 / tokens[0], 1 / tokens[1]), rho=(rho[0], rho[1]), c=(c[0], c[1]))
