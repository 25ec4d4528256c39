"""Exponential weights over drafts from full information: every draft is scored on the same verified text.

Text that the target has verified scores every draft without a target pass, so after each scored request the loss
of *all* drafts is known (HedgeSpec), and exponential weighting regrets at most √(T ln N ÷ 2) against the best of N
drafts over T requests. Traffic drifts and drafts learn, so two mechanisms forget: a fixed share of all weight is
redistributed at each step (Herbster and Warmuth: it tracks a best draft that changes), and where the leader's newest
losses lie clearly above its usual ones the weights are drawn towards uniform at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

SHARE = 0.01
"""Share of the weight redistributed at each step."""
FAST, SLOW = 1 / 8, 1 / 64
"""Smoothing factors of the two moving averages of a draft's loss."""
ALARM = 3.0
"""Standard deviations by which the leader's fast average must exceed its slow one to raise an alarm."""
RESET = 0.5
"""Share of the weight that an alarm redistributes."""


class Hedge:
    """Exponential weights over named drafts, which may come and go."""

    def __init__(self, rate: float = 16.0) -> None:
        """Start without drafts. ``rate`` is η of exp(−η · loss); losses differ by hundredths, so it is large."""
        self._rate = rate
        self._weights: dict[str, float] = {}
        self._averages: dict[str, npt.NDArray[np.float64]] = {}
        self.alarms = 0
        """Number of drifts noticed."""
        self.seen = 0
        """Number of requests learned from."""

    def weights(self) -> dict[str, float]:
        """Return the weight of each draft; they sum to 1."""
        return dict(self._weights)

    def state(self) -> dict[str, Any]:
        """Return what it has learned, for JSON."""
        averages = {draft: values.tolist() for draft, values in self._averages.items()}
        return {"weights": dict(self._weights), "averages": averages, "seen": self.seen, "alarms": self.alarms}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned. Raises ValueError for invalid weights."""
        weights = {str(draft): float(weight) for draft, weight in state["weights"].items()}
        averages = {str(draft): np.array(values, np.float64) for draft, values in state["averages"].items()}
        numbers = np.array([*weights.values(), *(number for values in averages.values() for number in values)])
        if weights.keys() != averages.keys() or any(values.shape != (3,) for values in averages.values()):
            raise ValueError("weights and averages that do not fit")
        if not np.isfinite(numbers).all() or (numbers < 0).any():
            raise ValueError("weights that are none")
        self._weights, self._averages = weights, averages
        self.seen, self.alarms = int(state["seen"]), int(state["alarms"])

    def learn(self, losses: Mapping[str, float]) -> None:
        """Update with the losses in [0, 1] of all drafts on one text.

        A new draft starts with an equal share of the weight; one that is not named keeps its weight.
        """
        self._admit(losses)
        self._multiply(losses)
        if self._drifted(losses):
            self.alarms += 1
            self._hand_round(RESET)
        self._hand_round(SHARE)
        self.seen += 1

    def _admit(self, losses: Mapping[str, float]) -> None:
        for draft in losses:
            if draft not in self._weights:
                self._weights[draft] = sum(self._weights.values()) / len(self._weights) if self._weights else 1.0
                self._averages[draft] = np.array([losses[draft], losses[draft], 0.05])
        self._normalise()

    def _multiply(self, losses: Mapping[str, float]) -> None:
        for draft, loss in losses.items():
            self._weights[draft] *= float(np.exp(-self._rate * loss))
        self._normalise()

    def _drifted(self, losses: Mapping[str, float]) -> bool:
        """Update the averages; return whether the leader does clearly worse than before."""
        leader = max(self._weights, key=self._weights.__getitem__)
        for draft, loss in losses.items():
            fast, slow, spread = self._averages[draft]
            spread += SLOW * ((loss - slow) ** 2 - spread)
            self._averages[draft][:] = fast + FAST * (loss - fast), slow + SLOW * (loss - slow), spread
        fast, slow, spread = self._averages[leader]
        worse = bool(fast - slow > ALARM * np.sqrt(spread * FAST / (2 - FAST)) + 1e-9)
        if worse:
            self._averages[leader][1] = fast
        return worse

    def _hand_round(self, share: float) -> None:
        even = 1 / len(self._weights)
        for draft, weight in self._weights.items():
            self._weights[draft] = (1 - share) * weight + share * even

    def _normalise(self) -> None:
        total = sum(self._weights.values())
        for draft in self._weights:
            self._weights[draft] = self._weights[draft] / total if total > 0 else 1 / len(self._weights)
