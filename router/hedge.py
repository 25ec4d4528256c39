"""Weights over drafts from full information: every draft is scored on the same verified text.

Text that the target has verified scores every draft without touching the target, so after each scored request the loss
of *all* drafts is known (HedgeSpec), and exponential weighting regrets at most √(T ln N ÷ 2) against the best of N
drafts over T requests. Traffic drifts and drafts learn, so two things forget: a fixed share of all weight is handed
round at each step (Herbster and Warmuth: it tracks a best draft that changes), and where the newest losses of the
leader lie clearly above its usual ones the weights are drawn towards even at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

SHARE = 0.01
"""Weight handed round at a step."""
FAST, SLOW = 1 / 8, 1 / 64
"""How quickly the two averages of a draft's loss move."""
ALARM = 3.0
"""Standard deviations by which the fast average of the leader's loss must lie above the slow one."""
RESET = 0.5
"""Share of all weight that an alarm hands round."""


class Hedge:
    """Exponential weights over named drafts, which may come and go."""

    def __init__(self, rate: float = 16.0) -> None:
        """``rate``: η of exp(−η · loss). Losses are shares of speed and differ by hundredths, so it is large."""
        self._rate = rate
        self._weights: dict[str, float] = {}
        self._averages: dict[str, npt.NDArray[np.float64]] = {}
        self.alarms = 0
        """Drifts noticed."""
        self.seen = 0
        """Requests learned from."""

    def weights(self) -> dict[str, float]:
        """The weight of each draft; they add up to 1."""
        return dict(self._weights)

    def state(self) -> dict[str, Any]:
        """What it has learned, for JSON."""
        averages = {draft: values.tolist() for draft, values in self._averages.items()}
        return {"weights": dict(self._weights), "averages": averages, "seen": self.seen, "alarms": self.alarms}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`. Raises ValueError for what cannot be weights."""
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
        """The losses in [0, 1] of all drafts on one text. A draft that was not there before starts with an even part
        of the weight; one that is not named keeps its part."""
        self._admit(losses)
        self._multiply(losses)
        if self._drifted(losses):
            self.alarms += 1
            self._hand_round(RESET)
        self._hand_round(SHARE)
        self.seen += 1

    def forget(self, draft: str) -> None:
        """Leave a draft out from now on."""
        self._weights.pop(draft, None)
        self._averages.pop(draft, None)
        self._normalise()

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
        """Moves the averages; whether the leader does clearly worse than it used to."""
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
