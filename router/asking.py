"""Predictions of each draft's performance from a prompt, and the outcomes that they learn from.

A prompt's vector is computed only when it is needed: for a prediction before the request is served, or for learning
from it. Outcomes wait until several can be learned from at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from router.base import Estimate
from router.foresight import DraftPredictor, TextScore
from router.prompt_vector import PromptVectors, Vector
from router.throughput import Costs, best_pace, expected_to_pay

CostsOf = Callable[[str], Costs | None]
"""A function of a draft's name that returns its measured costs; None before they are known."""

Expect = Literal["gain", "pace", "theorem"]
"""What is expected of a draft: its throughput, or that at the expected α, as the paper's Eq. 3 has it; with
``theorem`` drafts are compared by Theorem 3 instead."""

LATER = 8
"""Maximum number of waiting outcomes; learned from one by one, between rounds, they would miss the CPU's caches."""


@dataclass(slots=True)
class Asked:
    """A routed request whose outcome is not yet known."""

    tokens: Sequence[int]
    """The prompt, until its vector is computed."""
    learn: bool
    """Whether its tokens may be counted."""
    perplexity: float | None
    route: str
    drafts: Sequence[str]
    draft: str = ""
    """Name of the draft chosen."""
    vector: Vector | None = None
    """The prompt's vector, once computed."""
    followed: str = ""
    """The draft that the prediction named when the vector was computed."""
    served: TextScore | None = None
    """The outcome with the draft that served the request."""


class Prompts:
    """One least-squares estimator a draft. See :class:`router.auto.AutoRouter` for who calls."""

    def __init__(self, costs: CostsOf, dimensions: int, expect: Expect, learning: threading.Lock) -> None:
        """Start with nothing learned. ``learning`` is a lock held while anything changes."""
        self._costs, self._dimensions, self._expect, self._learning = costs, dimensions, expect, learning
        self._vectors = PromptVectors(dimensions)
        self._foresight: dict[str, DraftPredictor] = {}
        self._later: list[Asked] = []

    @property
    def learned(self) -> int:
        """Number of texts and outcomes learned from. May be read by another thread."""
        return sum(one.seen for one in self._foresight.copy().values())

    def seen(self, draft: str) -> int:
        """Return the number of prompts on which a draft was judged."""
        return self._of(draft).seen

    def look(self, asked: Asked) -> tuple[Estimate, ...]:
        """Return an estimate for each draft from everything known so far."""
        self.catch_up()
        return self._look(asked)

    def judge(self, asked: Asked, seen: TextScore) -> None:
        """Add the outcome with the draft that served the request; learned from together with others."""
        asked.served = seen
        self._later.append(asked)
        if len(self._later) >= LATER:
            self.catch_up()

    def catch_up(self) -> None:
        """Learn from the waiting outcomes."""
        later, self._later = self._later, []
        for asked in later:
            costs = self._costs(asked.draft)
            if asked.served is not None and costs is not None:
                self._learn(asked, {asked.draft: asked.served}, {asked.draft: costs})

    def compare(self, asked: Asked, seen: Mapping[str, TextScore], costs: Mapping[str, Costs]) -> None:
        """Add each draft's score on the verified text, where its costs are known; the draft that served is known
        already."""
        self.catch_up()
        self._learn(asked, seen, {draft: cost for draft, cost in costs.items() if draft != asked.draft})

    def state(self) -> dict[str, Any]:
        """Return what was learned, for JSON."""
        drafts = {draft: one.state() for draft, one in self._foresight.items()}
        return {"prompts": self._vectors.state(), "drafts": drafts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned. Raises ValueError for an invalid state, with nothing changed."""
        vectors = PromptVectors(self._dimensions)
        vectors.restore(state["prompts"])
        foresight = {str(draft): DraftPredictor(self._dimensions) for draft in state["drafts"]}
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
        asked.followed = self._named(estimates, asked.drafts[0])
        return estimates

    def _named(self, estimates: Sequence[Estimate], otherwise: str) -> str:
        """Return the draft that the prediction names; ``otherwise`` while some cost is unknown."""
        known = {each.draft: (each.alpha, cost) for each in estimates if (cost := self._costs(each.draft)) is not None}
        if len(known) < len(estimates):
            return otherwise
        return by_theorem(known) if self._expect == "theorem" else _fastest(estimates)

    def _estimate(self, draft: str, vector: Vector) -> Estimate:
        alpha, gain = self._of(draft).predict(vector)
        costs = self._costs(draft)
        if costs is None:
            return Estimate(draft, alpha)
        if self._expect != "gain":
            return Estimate(draft, alpha, best_pace(alpha, costs).tokens_per_s)
        return Estimate(draft, alpha, 1e3 * gain / costs.verify_ms[0])

    def _of(self, draft: str) -> DraftPredictor:
        return self._foresight.setdefault(draft, DraftPredictor(self._dimensions))


def _fastest(estimates: Sequence[Estimate]) -> str:
    """Return the draft of the highest expected throughput."""
    return max(estimates, key=lambda estimate: estimate.tokens_per_s or 0.0).draft


def by_theorem(drafts: Mapping[str, tuple[float, Costs]]) -> str:
    """Return the draft that Theorem 3 leads to: from the cheapest on, the next dearer one where it pays. ``drafts``: α̂
    and costs."""
    first, *larger = sorted(drafts, key=lambda draft: drafts[draft][1].draft_ms)
    for draft in larger:
        (alpha, cost), (more, dearer) = drafts[first], drafts[draft]
        if expected_to_pay((alpha, more), (cost, dearer)):
            first = draft
    return first
