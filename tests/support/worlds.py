"""A machine of known costs and a draft of known acceptance, in which controllers are tried."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from osd.gamma.base import CostModel, GammaController, Observation
from osd.gamma.costs.pass_times import TRUSTED
from osd.gamma.rules.analytic import AnalyticController, AnalyticRow


def known_costs(step: float, verify: Callable[[int, int], float], batches: tuple[int, ...] = (1,)) -> CostModel:
    """A cost model that has timed γ = 0 to 12 at these batch sizes, each shape often enough to be known."""
    costs = CostModel()
    for _ in range(TRUSTED):
        for batch in batches:
            for gamma in range(13):
                costs.observe_draft(batch, gamma, gamma * step)
                costs.observe_verify(batch, batch * (gamma + 1), verify(batch, gamma + 1))
    return costs


def play(
    controller: AnalyticController,
    row: AnalyticRow,
    costs: CostModel,
    rounds: int,
    beta: float,
    step: float,
    verify: Callable[[int, int], float],
    seed: int = 0,
) -> list[tuple[int, int]]:
    """One request decoded alone, each drafted token accepted with chance ``beta``: (γ, accepted) of each round."""
    chance = random.Random(seed)
    played = []
    for _ in range(rounds):
        [gamma] = controller.plan([row], [99], 1)
        accepted = 0
        while accepted < gamma and chance.random() < beta:
            accepted += 1
        costs.observe_draft(1, gamma, gamma * step)
        costs.observe_verify(1, gamma + 1, verify(1, gamma + 1))
        row.observe(Observation(gamma, gamma, accepted))
        played.append((gamma, accepted))
    return played


def play_alone(controller: GammaController, accepted: Sequence[int]) -> list[int]:
    """One request decoded alone, so many tokens accepted a round (no more than were drafted): the gamma before each
    round and after the last."""
    row = controller.start()
    asked = controller.plan([row], [99], 1)
    for count in accepted:
        row.observe(Observation(asked[-1], asked[-1], min(count, asked[-1])))
        asked += controller.plan([row], [99], 1)
    return asked
