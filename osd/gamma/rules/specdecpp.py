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
from typing import Any

from osd.gamma.base import DraftDecision, Observation, RowByRow, Signal

log = logging.getLogger(__name__)

TOKENS = 20
"""Most tokens of a round (section 5.1)."""


class SpecDecRow:
    """State of one request: P̂ that every token of the round so far is accepted."""

    __slots__ = ("_controller", "_has_head", "_kept")

    def __init__(self, controller: SpecDecController) -> None:
        self._controller = controller
        self._kept = 1.0
        self._has_head = controller.has_head

    def next_gamma(self, batch: int) -> int:
        """Return as many tokens as may be drafted; the head ends the round."""
        self._kept = 1.0
        return self._controller.longest if self._has_head else self._controller.initial

    def decide(self, drafted: int, signal: float) -> DraftDecision:
        """Decide after a pass. The first one reads the row's own last token, which is no candidate."""
        self._has_head = self._controller.notes_head(signal)
        if not self._has_head:
            return DraftDecision.ON if drafted < self._controller.initial else DraftDecision.LAST
        return DraftDecision.ON if drafted == 1 else self.keep_drafting(signal)

    def keep_drafting(self, signal: float) -> DraftDecision:
        """Decide after pass i > 1, with the estimate for token i − 1."""
        self._kept *= signal
        return DraftDecision.LAST if 1 - self._kept > self._controller.threshold else DraftDecision.ON

    def observe(self, seen: Observation) -> None:
        """Do nothing: the head is trained elsewhere, from what is recorded."""


class SpecDecController(RowByRow):
    """The SpecDec++ rule with threshold h. While a row's draft has no head, ``initial`` tokens a round, at least 1."""

    name: str = "specdecpp"
    signal: Signal = "acceptance"

    def __init__(self, threshold: float, *, initial: int, maximum: int) -> None:
        self.threshold = threshold
        self.longest = min(TOKENS, maximum)
        """Most tokens of a round."""
        self.initial = max(1, min(initial, maximum))
        """Tokens of a round without a head."""
        self.has_head = False
        """Whether the newest signal of any row was a number."""
        self._told = False

    def start(self) -> SpecDecRow:
        """Return the state of a new request."""
        return SpecDecRow(self)

    def should_continue(self, rows: Sequence[Any], drafted: int, signals: Sequence[float]) -> list[DraftDecision]:
        """Apply Algorithm 1."""
        return [row.decide(drafted, signal) for row, signal in zip(rows, signals, strict=True)]

    def notes_head(self, signal: float) -> bool:
        """Return whether a signal is a head's, and note it; that one is missing is logged once."""
        self.has_head = not math.isnan(signal)
        if not self.has_head and not self._told:
            self._told = True
            message = "specdecpp has no acceptance head yet: %d tokens a round until one was trained (learn.head)"
            log.info(message, self.initial, extra={"action": "no_head"})
        return self.has_head
