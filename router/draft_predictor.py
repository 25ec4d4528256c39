"""Predictions of each draft's performance from a prompt, and the outcomes that they learn from.

Two numbers are predicted from a prompt's vector: α, as in the paper, and the gain, tokens per second with this draft
over those without speculation. The gain at the expected α is less than the expected gain, since prompts differ and a
draft that guesses badly can be left alone; so drafts are compared by gain, and α is for people and for Theorem 3.

A prompt's vector is computed only when it is needed: for a prediction before the request is served, or for learning
from it. Outcomes wait until several can be learned from at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from router.base import Estimate
from router.prompt_vector import LeastSquares, PromptVectors, Vector
from router.throughput import Costs, TextScore, best_pace, expected_to_pay, gain

CLEAR = 25.0
"""Judged tokens that weigh as one prompt."""

CostsOf = Callable[[str], Costs | None]
"""A function of a draft's name that returns its measured costs; None before they are known."""

Expect = Literal["gain", "pace", "theorem"]
"""What is expected of a draft: its throughput, or that at the expected α, as the paper's Eq. 3 has it; with
``theorem`` drafts are compared by Theorem 3 instead."""

TOGETHER = 8
"""Maximum number of waiting outcomes; learned from one by one, between rounds, they would miss the CPU's caches."""


@dataclass(slots=True)
class PendingRequest:
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


class DraftPredictor(LeastSquares):
    """The predictor for one draft; ``seen`` is the number of prompts on which it was judged."""

    def __init__(self, dimensions: int) -> None:
        super().__init__(dimensions, outputs=2)

    def expect(self, vector: Vector) -> tuple[float, float]:
        """Return (α̂ in [0, 1], gain), the gain not clipped at 1 so that small ones compare; (0, 1) before any
        judgement."""
        alpha, above = self.predict(vector)
        return float(np.clip(alpha, 0.0, 1.0)), 1 + float(above)

    def add_score(self, vector: Vector, seen: TextScore, costs: Costs) -> None:
        """Learn from a prompt's result; a text without a judged token teaches nothing."""
        if seen.judged <= 0:
            return
        values = np.array([seen.alpha, gain(seen.alpha, costs) - 1])
        self.learn(vector, values, min(4.0, seen.judged / CLEAR))


class DraftPredictors:
    """One least-squares estimator a draft. See :class:`router.auto.AutoRouter` for who calls."""

    def __init__(self, costs: CostsOf, dimensions: int, expect: Expect, learning: threading.Lock) -> None:
        """Start with nothing learned. ``learning`` is a lock held while anything changes."""
        self._costs, self._dimensions, self._expect, self._learning = costs, dimensions, expect, learning
        self._vectors = PromptVectors(dimensions)
        self._predictors: dict[str, DraftPredictor] = {}
        self._waiting: list[PendingRequest] = []

    @property
    def learned(self) -> int:
        """Number of texts and outcomes learned from. May be read by another thread."""
        return sum(one.seen for one in self._predictors.copy().values())

    def seen(self, draft: str) -> int:
        """Return the number of prompts on which a draft was judged."""
        return self._predictor(draft).seen

    def estimates(self, pending: PendingRequest) -> tuple[Estimate, ...]:
        """Return an estimate for each draft from everything known so far."""
        self.learn_waiting()
        return self._estimates(pending)

    def add_outcome(self, pending: PendingRequest, seen: TextScore) -> None:
        """Add the outcome with the draft that served the request; learned from together with others."""
        pending.served = seen
        self._waiting.append(pending)
        if len(self._waiting) >= TOGETHER:
            self.learn_waiting()

    def learn_waiting(self) -> None:
        """Learn from the waiting outcomes."""
        waiting, self._waiting = self._waiting, []
        for pending in waiting:
            costs = self._costs(pending.draft)
            if pending.served is not None and costs is not None:
                self._learn(pending, {pending.draft: pending.served}, {pending.draft: costs})

    def add_scores(self, pending: PendingRequest, seen: Mapping[str, TextScore], costs: Mapping[str, Costs]) -> None:
        """Add each draft's score on the verified text, where its costs are known; the draft that served is known
        already."""
        self.learn_waiting()
        self._learn(pending, seen, {draft: cost for draft, cost in costs.items() if draft != pending.draft})

    def state(self) -> dict[str, Any]:
        """Return what was learned, for JSON."""
        drafts = {draft: one.state() for draft, one in self._predictors.items()}
        return {"prompts": self._vectors.state(), "drafts": drafts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned. Raises ValueError for an invalid state, with nothing changed."""
        vectors = PromptVectors(self._dimensions)
        vectors.restore(state["prompts"])
        predictors = {str(draft): DraftPredictor(self._dimensions) for draft in state["drafts"]}
        for name, one in predictors.items():
            one.restore(state["drafts"][name])
        self._vectors, self._predictors = vectors, predictors

    def _learn(self, pending: PendingRequest, seen: Mapping[str, TextScore], costs: Mapping[str, Costs]) -> None:
        if pending.vector is None:
            self._estimates(pending)
        assert pending.vector is not None
        with self._learning:
            for draft, cost in costs.items():
                self._predictor(draft).add_score(pending.vector, seen[draft], cost)

    def _estimates(self, pending: PendingRequest) -> tuple[Estimate, ...]:
        tokens, pending.tokens = pending.tokens, ()
        pending.vector = vector = self._vectors.vector(tokens, pending.perplexity)
        if pending.learn:
            self._vectors.learn(tokens)
        estimates = tuple(self._estimate(draft, vector) for draft in pending.drafts)
        pending.followed = self._named(estimates, pending.drafts[0])
        return estimates

    def _named(self, estimates: Sequence[Estimate], otherwise: str) -> str:
        """Return the draft that the prediction names; ``otherwise`` while some cost is unknown."""
        known = {each.draft: (each.alpha, cost) for each in estimates if (cost := self._costs(each.draft)) is not None}
        if len(known) < len(estimates):
            return otherwise
        return by_theorem(known) if self._expect == "theorem" else _fastest(estimates)

    def _estimate(self, draft: str, vector: Vector) -> Estimate:
        alpha, gain = self._predictor(draft).expect(vector)
        costs = self._costs(draft)
        if costs is None:
            return Estimate(draft, alpha)
        if self._expect != "gain":
            return Estimate(draft, alpha, best_pace(alpha, costs).tokens_per_s)
        return Estimate(draft, alpha, 1e3 * gain / costs.verify_ms[0])

    def _predictor(self, draft: str) -> DraftPredictor:
        return self._predictors.setdefault(draft, DraftPredictor(self._dimensions))


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
