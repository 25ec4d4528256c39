"""What prompts say of drafts: requests on their way, what was expected of each, and what came of it.

A prompt is looked at when somebody wants to know what it says: before the request is served, or when it is learned
from. Outcomes wait until some can be learned from in one go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router.base import Estimate
from router.foresight import Foresight, TextScore
from router.prompt_vector import PromptVectors, Vector
from router.throughput import Costs, best_pace

CostsOf = Callable[[str], Costs | None]
"""A draft's measured costs; None before they are known."""

LATER = 8
"""Outcomes that wait at most. One by one, between rounds, they find neither code nor numbers in the caches."""


@dataclass(slots=True)
class Asked:
    """What was chosen for a request, until it is known how it went."""

    tokens: Sequence[int]
    """The prompt, until it was looked at."""
    learn: bool
    """Whether its tokens may be counted."""
    perplexity: float | None
    route: str
    drafts: Sequence[str]
    draft: str = ""
    """The one that was chosen."""
    vector: Vector | None = None
    """Once the prompt was looked at."""
    followed: str = ""
    """The draft that its prediction named then."""
    served: TextScore | None = None
    """How it went."""


class Prompts:
    """One least-squares estimate a draft. See :class:`router.auto.AutoRouter` for who calls."""

    def __init__(self, costs: CostsOf, dimensions: int, pace: bool, learning: threading.Lock) -> None:
        """``pace``: expect the throughput of the expected α, as the paper does, and not the expected throughput.
        ``learning`` is held while anything changes."""
        self._costs, self._dimensions, self._pace, self._learning = costs, dimensions, pace, learning
        self._vectors = PromptVectors(dimensions)
        self._foresight: dict[str, Foresight] = {}
        self._later: list[Asked] = []

    @property
    def learned(self) -> int:
        """Texts and outcomes. May be asked by another thread."""
        return sum(one.seen for one in self._foresight.copy().values())

    def seen(self, draft: str) -> int:
        """Prompts on which a draft was judged."""
        return self._of(draft).seen

    def look(self, asked: Asked) -> tuple[Estimate, ...]:
        """What the prompt says of each draft, from all that is known."""
        self.catch_up()
        return self._look(asked)

    def judge(self, asked: Asked, seen: TextScore) -> None:
        """How it went with the draft that served: learned from with others like it."""
        asked.served = seen
        self._later.append(asked)
        if len(self._later) >= LATER:
            self.catch_up()

    def catch_up(self) -> None:
        """Learn from what waits."""
        later, self._later = self._later, []
        for asked in later:
            costs = self._costs(asked.draft)
            if asked.served is not None and costs is not None:
                self._learn(asked, {asked.draft: asked.served}, {asked.draft: costs})

    def compare(self, asked: Asked, seen: Mapping[str, TextScore], costs: Mapping[str, Costs]) -> None:
        """How each draft did on its verified text, where its costs are known. The one that served is known already."""
        self.catch_up()
        self._learn(asked, seen, {draft: cost for draft, cost in costs.items() if draft != asked.draft})

    def state(self) -> dict[str, Any]:
        """What was learned, for JSON."""
        drafts = {draft: one.state() for draft, one in self._foresight.items()}
        return {"prompts": self._vectors.state(), "drafts": drafts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`. Raises ValueError for what it cannot be, and nothing is changed then."""
        vectors = PromptVectors(self._dimensions)
        vectors.restore(state["prompts"])
        foresight = {str(draft): Foresight(self._dimensions) for draft in state["drafts"]}
        for name, one in foresight.items():
            one.restore(state["drafts"][name])
        self._vectors, self._foresight = vectors, foresight

    def _learn(self, asked: Asked, seen: Mapping[str, TextScore], costs: Mapping[str, Costs]) -> None:
        if asked.vector is None:
            self._look(asked)
        assert asked.vector is not None
        with self._learning:
            for draft, cost in costs.items():
                self._of(draft).learn(asked.vector, seen[draft], cost)

    def _look(self, asked: Asked) -> tuple[Estimate, ...]:
        tokens, asked.tokens = asked.tokens, ()
        asked.vector = vector = self._vectors.vector(tokens, asked.perplexity)
        if asked.learn:
            self._vectors.learn(tokens)
        estimates = tuple(self._estimate(draft, vector) for draft in asked.drafts)
        asked.followed = _fastest(estimates, asked.drafts[0])
        return estimates

    def _estimate(self, draft: str, vector: Vector) -> Estimate:
        alpha, gain = self._of(draft).predict(vector)
        costs = self._costs(draft)
        if costs is None:
            return Estimate(draft, alpha)
        if self._pace:
            return Estimate(draft, alpha, best_pace(alpha, costs).tokens_per_s)
        return Estimate(draft, alpha, 1e3 * gain / costs.verify_ms[0])

    def _of(self, draft: str) -> Foresight:
        return self._foresight.setdefault(draft, Foresight(self._dimensions))


def _fastest(estimates: Sequence[Estimate], otherwise: str) -> str:
    """The draft of the highest expected throughput; ``otherwise`` while some cost is not known."""
    if any(estimate.tokens_per_s is None for estimate in estimates):
        return otherwise
    return max(estimates, key=lambda estimate: estimate.tokens_per_s or 0.0).draft
