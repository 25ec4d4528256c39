"""SpecDec++: draft until a token was probably refused, by the draft's acceptance head (section 4.3, Algorithm 1).

The head itself is in :mod:`osd.models.acceptance_head`; here there is only the rule. Draft pass i reads token y_{i−1},
so it brings the head's estimate of that token beside the token y_i:

    P̂ ← P̂ · sigmoid(f_θ(e_{i−1}));   stop if 1 − P̂ > h

y_i was drawn by then and is verified with the others, as in the paper's decision process: ``stop`` in the state
(Y_1 … Y_k) verifies (Y_1 … Y_{k+1}). A round ends at 20 tokens at most.

The paper chooses h in hindsight. With ``threshold = "costs"`` it follows from what passes cost. The next pass brings a
token that counts where all before it and y_i and itself are accepted, about P̂ α², and takes the time of λ a tokens, so

    h = 1 − λ a / α²

with a the time of a draft pass and of verifying its token, λ the tokens that rounds make in a time, and α how often a
judged token was accepted, lately. Two things go with it: P̂ is corrected by what was accepted, for a head's estimates
are low by its weight of rejections; and while rounds made less than plain decoding would, the draft rests.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, Literal

from osd.gamma.base import CostModel, DraftDecision, Observation, RowByRow, Signal
from osd.gamma.costs.pass_times import FRESH
from osd.gamma.goodput.acceptance import Regression, expected, log_odds

log = logging.getLogger(__name__)

TOKENS = 20
"""Most tokens of a round (section 5.1)."""
PATIENCE, MEMORY = 32, 200.0
"""Rounds, and verdicts on tokens, that λ, α and the correction of P̂ go by."""
REST, TRIES = 64, 8
"""Rounds without drafts where drafts do not pay, and rounds that try them after that."""


class SpecDecRow:
    """State of one request: P̂ that every token of the round so far is accepted."""

    __slots__ = ("_controller", "_has_head", "_kept", "_said")

    def __init__(self, controller: SpecDecController) -> None:
        self._controller = controller
        self._kept = 1.0
        self._has_head = controller.has_head
        self._said: list[float] = []
        """What the head said of the round's tokens."""

    def next_gamma(self, batch: int) -> int:
        """Return as many tokens as may be drafted; the head ends the round."""
        self._kept, self._said = 1.0, []
        return self._controller.longest if self._has_head else self._controller.initial

    def decide(self, drafted: int, signal: float) -> DraftDecision:
        """Decide after a pass. The first one reads the row's own last token, which is no candidate."""
        self._has_head = self._controller.notes_head(signal)
        if not self._has_head:
            return DraftDecision.ON if drafted < self._controller.initial else DraftDecision.LAST
        return self._stop_or_go() if drafted == 1 else self.keep_drafting(signal)

    def keep_drafting(self, signal: float) -> DraftDecision:
        """Decide after pass i > 1, with the estimate for token i − 1."""
        by_costs = self._controller.by_costs
        self._said.append(signal)
        self._kept *= by_costs.corrected(signal) if by_costs else signal
        return self._stop_or_go()

    def _stop_or_go(self) -> DraftDecision:
        by_costs = self._controller.by_costs
        threshold = by_costs.threshold if by_costs else self._controller.threshold
        return DraftDecision.LAST if 1 - self._kept > threshold else DraftDecision.ON

    def observe(self, seen: Observation) -> None:
        """Tell how the round went, where costs decide; the head is trained elsewhere, from what is recorded."""
        if self._controller.by_costs:
            self._controller.by_costs.observe(seen, self._said)


class CostThreshold:
    """h from what passes cost, for all rows of an engine."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._told = Regression(1.0, 0.25, 0.0, MEMORY)
        """Log-odds of acceptance beside the head's."""
        self._draft = self._verify = 0.0
        """Time of a draft pass and of verifying a drafted token, ÷ a plain pass."""
        self._until = -1
        self._gained = self._spent = 1.0
        self._accepted, self._judged = 1.0, 2.0
        self._left = 0
        """Rounds of a rest that are left; below 0, rounds that try drafts."""

    @property
    def threshold(self) -> float:
        """h; the paper's while costs are unknown."""
        if not self._draft:
            return 0.7
        alpha = self._accepted / self._judged
        return 1 - max(1.0, self._gained / self._spent) * (self._draft + self._verify) / alpha**2

    def corrected(self, signal: float) -> float:
        """Return the chance of a token of which the head says so."""
        return expected(*self._told.look(log_odds(signal), [0.0, 0.0], [0.0, 0.0]))

    def rests(self, batch: int) -> bool:
        """Return whether a round goes without drafts."""
        self._look_up(batch)
        if self._left == 0 and self._gained < self._spent:
            self._left = REST
        self._left = self._left - 1 if self._left > 1 else -TRIES if self._left == 1 else min(0, self._left + 1)
        return self._left > 0

    def observe(self, seen: Observation, said: Sequence[float]) -> None:
        """Learn from a round, and from what the head said of its tokens."""
        if not seen.drafted:
            return
        keep = 1 - 1 / PATIENCE
        self._gained = keep * self._gained + (1 - keep) * (seen.accepted + 1)
        self._spent = keep * self._spent + (1 - keep) * (1 + seen.drafted * (self._draft + self._verify))
        judged = min(seen.accepted + 1, seen.drafted)
        fade = (1 - 1 / MEMORY) ** judged
        self._accepted, self._judged = fade * self._accepted + seen.accepted, fade * self._judged + judged
        for i, signal in enumerate(said[:judged]):
            verdict = seen.chances[i] if i < len(seen.chances) else float(i < seen.accepted)
            self._told.learn(log_odds(signal), [0.0, 0.0], [0.0, 0.0], verdict)

    def _look_up(self, batch: int) -> None:
        costs = self._costs
        if costs.rounds < self._until or not costs.known:
            return
        self._until = costs.rounds + 1 + min(FRESH, costs.rounds // 2)
        plain, one, two = (costs.verify_ms(batch, tokens * batch) or 1.0 for tokens in (1, 4, 5))
        few, more = (costs.draft_ms(batch, passes) or 0.0 for passes in (4, 5))
        self._draft, self._verify = max(0.0, more - few) / plain, max(0.0, two - one) / plain


class SpecDecController(RowByRow):
    """The SpecDec++ rule with threshold h, or "costs". While a row's draft has no head, ``initial`` tokens a round, at
    least 1."""

    name: str = "specdecpp"
    signal: Signal = "acceptance"

    def __init__(
        self, threshold: float | Literal["costs"], *, initial: int, maximum: int, costs: CostModel | None = None
    ) -> None:
        self.by_costs = CostThreshold(costs or CostModel()) if threshold == "costs" else None
        """What gives h, where that is not a constant."""
        self.threshold = 1.0 if threshold == "costs" else threshold
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

    def plan(self, rows: Sequence[Any], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()) -> list[int]:
        """Return the most tokens to draft for each row: none, where costs decide, in rounds that rest."""
        lengths = super().plan(rows, rooms, batch, unread)
        return [0] * len(rows) if self.by_costs and self.by_costs.rests(batch) else lengths

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
