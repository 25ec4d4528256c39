"""SpecDec++: draft until a token was probably refused, by the draft's acceptance head (section 4.3, Algorithm 1).

The head itself is in :mod:`osd.models.acceptance_head`; here there is only the rule. Draft pass i reads token y_{i−1},
so it brings the head's estimate of that token beside the token y_i:

    P̂ ← P̂ · sigmoid(f_θ(e_{i−1}));   stop if 1 − P̂ > h

y_i was drawn by then and is verified with the others, as in the paper's decision process: ``stop`` in the state
(Y_1 … Y_k) verifies (Y_1 … Y_{k+1}). A round ends at 20 tokens at most.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from osd.gamma.base import DraftDecision, Observation, RowByRow, Signal, StoppableRow

log = logging.getLogger(__name__)

TOKENS = 20
"""Most tokens of a round (section 5.1)."""


class SpecDecRow:
    """State of one request: P̂ that every token of the round so far is accepted."""

    __slots__ = ("_controller", "_kept")

    def __init__(self, controller: SpecDecController) -> None:
        self._controller = controller
        self._kept = 1.0

    def next_gamma(self, batch: int) -> int:
        """Return as many tokens as may be drafted; the head ends the round."""
        self._kept = 1.0
        return self._controller.longest

    def keep_drafting(self, signal: float) -> DraftDecision:
        """Decide after pass i > 1, with the estimate for token i − 1."""
        self._kept *= signal
        return DraftDecision.LAST if 1 - self._kept > self._controller.threshold else DraftDecision.ON

    def observe(self, seen: Observation) -> None:
        """Do nothing: the head is trained elsewhere, from what is recorded."""


class SpecDecController(RowByRow):
    """The SpecDec++ rule with threshold h. While there is no head, ``initial`` tokens a round, at least 1."""

    name: str = "specdecpp"
    signal: Signal = "acceptance"

    def __init__(self, threshold: float, *, initial: int, maximum: int) -> None:
        self.threshold = threshold
        self._maximum = min(TOKENS, maximum)
        self._blind = max(1, min(initial, maximum))
        self._has_head = False  # until a signal is a number
        self._told = False

    @property
    def longest(self) -> int:
        """Most tokens of a round."""
        return self._maximum if self._has_head else self._blind

    def start(self) -> SpecDecRow:
        """Return the state of a new request."""
        return SpecDecRow(self)

    def should_continue(
        self, rows: Sequence[StoppableRow], drafted: int, signals: Sequence[float]
    ) -> list[DraftDecision]:
        """Apply Algorithm 1. The first pass reads the row's own last token, which is no candidate."""
        self._has_head = not any(map(math.isnan, signals))
        if not self._has_head:
            self._tell()
            return [DraftDecision.ON if drafted < self._blind else DraftDecision.LAST] * len(rows)
        if drafted == 1:
            return [DraftDecision.ON] * len(rows)
        return super().should_continue(rows, drafted, signals)

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            message = "specdecpp has no acceptance head yet: %d tokens a round until one was trained (learn.head)"
            log.info(message, self._blind, extra={"action": "no_head"})
