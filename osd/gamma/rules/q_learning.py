"""Method 4 of on-the-fly adaptation: Q-learning chooses γ (Algorithm 2). A table on the CPU, no network.

    state    γ of the round before
    action   γ of the next round, 0 to γ_max
    reward   share of the drafted tokens that was accepted; ``rest`` where none was drafted

    Q(s, a) ← Q(s, a) + α (reward + λ max Q(a, ·) − Q(s, a))

All requests of an engine teach one table. The paper says what state, action and reward are, and warms its agent up on
25 trials. The rest is osd's: here the share of γs drawn at random falls from all, in the first request, to ε after
``warmup`` of them; α, λ and ε have no values in the paper; and of no drafted tokens there is no share, so that a row
rests where drafting is worth less than ``rest``, by default only where nothing is accepted. It drafts again once a γ
drawn at random was worth more.
"""

from __future__ import annotations

import random

from osd.gamma.base import Observation, RowByRow
from storage.settings.drafting import QLearningSettings


class QLearningRow:
    """State of one request: the γs of its last two rounds."""

    __slots__ = ("_before", "_controller", "_gamma")

    def __init__(self, controller: QLearningController) -> None:
        self._controller = controller
        self._before: int | None = None
        self._gamma = controller.initial

    def next_gamma(self, batch: int) -> int:
        """Return the γ that the agent chose after the last round, Algorithm 2 line 17."""
        return self._gamma

    def observe(self, seen: Observation) -> None:
        """Learn from a round, Algorithm 2 lines 16 to 18. A request's first γ, or one that a length limit cut, was not
        chosen by the agent and teaches nothing."""
        if self._before is not None and seen.drafted == self._gamma:
            self._controller.learn(self._before, self._gamma, self._controller.reward(seen))
        self._before = self._gamma
        self._gamma = self._controller.choose(self._gamma)


class QLearningController(RowByRow):
    """The Q-learning rule. ``chance`` draws the random γs: the same one and the same rounds give the same choices."""

    name: str = "q_learning"

    def __init__(self, initial: int, maximum: int, chance: random.Random, settings: QLearningSettings) -> None:
        self.initial = initial
        self._maximum, self._chance, self._set = maximum, chance, settings
        self._values = [[0.0] * (maximum + 1) for _ in range(maximum + 1)]
        self._started = 0

    def start(self) -> QLearningRow:
        """Return the state of a new request, which begins with ``initial``."""
        self._started += 1
        return QLearningRow(self)

    @property
    def exploring(self) -> float:
        """Share of γs drawn at random now."""
        left = 1 - (self._started - 1) / self._set.warmup if self._set.warmup else 0.0
        return max(self._set.epsilon, left)

    def choose(self, state: int) -> int:
        """Return the action after a round of γ = ``state``; the least γ where several are worth the same."""
        if self._chance.random() < self.exploring:
            return self._chance.randint(0, self._maximum)
        values = self._values[state]
        return values.index(max(values))

    def reward(self, seen: Observation) -> float:
        """Return what a round was worth, Algorithm 2 lines 18 and 19."""
        return seen.accepted / seen.drafted if seen.drafted else self._set.rest

    def learn(self, state: int, action: int, reward: float) -> None:
        """Apply the Bellman update to Q(state, action)."""
        worth = reward + self._set.discount * max(self._values[action])
        self._values[state][action] += self._set.alpha * (worth - self._values[state][action])
