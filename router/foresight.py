"""Prediction of a draft's performance on a prompt from its performance on earlier ones.

Two numbers are predicted from a prompt's vector: α, as in the paper, and the gain, tokens per second with this draft
over those without speculation. The gain at the expected α is less than the expected gain, since prompts differ and a
draft that guesses badly can be left alone; so drafts are compared by gain, and α is for people and for Theorem 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from router.least_squares import LeastSquares, Vector
from router.throughput import Costs, best_pace

CLEAR = 25.0
"""Judged tokens that weigh as one prompt."""


@dataclass(frozen=True, slots=True)
class TextScore:
    """A draft's acceptance on one text."""

    alpha: float
    """Accepted ÷ judged."""
    judged: int
    """Tokens that were accepted or rejected."""


def gain(alpha: float, costs: Costs) -> float:
    """Return tokens a second at the best γ ÷ those of the target alone; at least 1, as γ may be 0."""
    return best_pace(alpha, costs).tokens_per_s * costs.verify_ms[0] / 1e3


class DraftPredictor:
    """The predictor for one draft."""

    def __init__(self, dimensions: int) -> None:
        self._squares = LeastSquares(dimensions, outputs=2)

    @property
    def seen(self) -> int:
        """Number of prompts on which it was judged."""
        return self._squares.seen

    def state(self) -> dict[str, Any]:
        """Return what it has learned, for JSON."""
        return self._squares.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned. Raises ValueError for other dimensions or numbers that are not
        finite."""
        self._squares.restore(state)

    def predict(self, vector: Vector) -> tuple[float, float]:
        """Return (α̂ in [0, 1], gain), the gain not clipped at 1 so that small ones compare; (0, 1) before any
        judgement."""
        alpha, above = self._squares.predict(vector)
        return float(np.clip(alpha, 0.0, 1.0)), 1 + float(above)

    def learn(self, vector: Vector, seen: TextScore, costs: Costs) -> None:
        """Add a prompt's result; a text without a judged token adds nothing."""
        if seen.judged <= 0:
            return
        values = np.array([seen.alpha, gain(seen.alpha, costs) - 1])
        self._squares.learn(vector, values, min(4.0, seen.judged / CLEAR))


def losses(seen: Sequence[TextScore], costs: Sequence[Costs]) -> list[float]:
    """Return each draft's loss on one text: the share of the best draft's speed that it lacks, in [0, 1)."""
    speeds = [gain(one.alpha, cost) / cost.verify_ms[0] for one, cost in zip(seen, costs, strict=True)]
    best = max(speeds)
    return [1 - speed / best for speed in speeds]
