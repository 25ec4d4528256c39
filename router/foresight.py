"""What a draft will make of a prompt, learned from what it made of others.

Two numbers are predicted from a prompt's vector: α, as in the paper, and the gain, tokens per second with this draft
over those without speculating. The gain of an expected α is less than the expected gain, since prompts differ and a
draft that guesses badly can be left alone; so what is compared is the gain, and α is for people and for Theorem 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from router.least_squares import LeastSquares, Vector
from router.throughput import Costs, best_pace

CLEAR = 25.0
"""Judged tokens that count as one prompt."""


@dataclass(frozen=True, slots=True)
class TextScore:
    """How a draft did on one text."""

    alpha: float
    """Accepted ÷ judged."""
    judged: int
    """Tokens that were accepted or refused."""


def gain(alpha: float, costs: Costs) -> float:
    """Tokens a second at the best window ÷ those of the target alone, at least 1 (the window may be 0)."""
    return best_pace(alpha, costs).tokens_per_s * costs.verify_ms[0] / 1e3


class Foresight:
    """One draft."""

    def __init__(self, dimensions: int) -> None:
        self._squares = LeastSquares(dimensions, outputs=2)

    @property
    def seen(self) -> int:
        """Prompts that it was judged on."""
        return self._squares.seen

    def state(self) -> dict[str, Any]:
        """What it has learned, for JSON."""
        return self._squares.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`. Raises ValueError where that is of other dimensions, or not finite."""
        self._squares.restore(state)

    def predict(self, vector: Vector) -> tuple[float, float]:
        """α̂ in [0, 1] and the gain, not cut at 1 so that small ones compare; of a draft never judged (0, 1)."""
        alpha, above = self._squares.predict(vector)
        return float(np.clip(alpha, 0.0, 1.0)), 1 + float(above)

    def learn(self, vector: Vector, seen: TextScore, costs: Costs) -> None:
        """Add what was seen on a prompt; a text without a judged token teaches nothing."""
        if seen.judged <= 0:
            return
        values = np.array([seen.alpha, gain(seen.alpha, costs) - 1])
        self._squares.learn(vector, values, min(4.0, seen.judged / CLEAR))


def losses(seen: Sequence[TextScore], costs: Sequence[Costs]) -> list[float]:
    """Of each draft on one text: the share of the best one's speed that it lacks, in [0, 1)."""
    speeds = [gain(one.alpha, cost) / cost.verify_ms[0] for one, cost in zip(seen, costs, strict=True)]
    best = max(speeds)
    return [1 - speed / best for speed in speeds]
