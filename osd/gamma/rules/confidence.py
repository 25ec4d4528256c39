"""transformers' ``assistant_confidence_threshold``: draft until the draft is unsure (stopping_criteria.py).

A draft ends after the first token to which the draft model gave less probability than τ, or at
``num_assistant_tokens``, 20 unless set, which with that threshold stays what it is (schedule ``constant``).
transformers also moves τ after every round where scikit-learn is installed (candidate_generator.py). Each verified
token is a sample, its probability the score, its acceptance the label, and τ becomes the score that minimises

    cost(τ) = share of the refused tokens with p ≥ τ  +  3 · share of the accepted ones with p < τ

once there are more than 5 samples, with both labels among them. Here that is ``adapts``, and scores are rounded down
to 1/64, so that a round costs the same however long the text is.
"""

from __future__ import annotations

from osd.gamma.base import DraftDecision, Observation, RowByRow, Signal

MISSED = 3.0
"""Cost of ending before a token that would be accepted, relative to drafting one that is refused."""
ENOUGH = 5
"""Number of samples above which τ moves."""
STEPS = 64
"""Number of steps of [0, 1] in which scores are counted."""


class Threshold:
    """τ of one request, and the verified tokens that move it."""

    __slots__ = ("_accepted", "_refused", "tau")

    def __init__(self, tau: float) -> None:
        self.tau = tau
        self._accepted = [0] * (STEPS + 1)
        self._refused = [0] * (STEPS + 1)

    def add(self, score: float, accepted: bool) -> None:
        """Add a verified token."""
        (self._accepted if accepted else self._refused)[int(score * STEPS)] += 1

    def move(self) -> None:
        """Set τ to the highest score of least cost; infinite, so that a draft is one token, where no score costs
        less."""
        hits, misses = sum(self._accepted), sum(self._refused)
        if hits + misses <= ENOUGH or not hits or not misses:
            return
        cost = best = MISSED
        tau = float("inf")
        for step in range(STEPS, -1, -1):
            cost += self._refused[step] / misses - MISSED * self._accepted[step] / hits
            if cost < best - 1e-9:
                best, tau = cost, step / STEPS
        self.tau = tau


class ConfidenceRow:
    """State of one request: its τ, and the scores of the current round."""

    __slots__ = ("_adapts", "_gamma", "_scores", "_threshold")

    def __init__(self, gamma: int, tau: float, adapts: bool) -> None:
        self._gamma, self._adapts = gamma, adapts
        self._threshold = Threshold(tau)
        self._scores: list[float] = []

    def next_gamma(self, batch: int) -> int:
        """Return as many tokens as may be drafted at all."""
        self._scores.clear()
        return self._gamma

    def keep_drafting(self, signal: float) -> DraftDecision:
        """Stop after a token of less than τ."""
        self._scores.append(signal)
        return DraftDecision.LAST if signal < self._threshold.tau else DraftDecision.ON

    def observe(self, seen: Observation) -> None:
        """Take the accepted tokens and the first refused one as samples; those after it were never verified."""
        if not self._adapts:
            return
        for index, score in enumerate(self._scores[: seen.accepted + 1]):
            self._threshold.add(score, index < seen.accepted)
        self._threshold.move()


class ConfidenceController(RowByRow):
    """The confidence threshold rule: ``tau`` in (0, 1); no more than ``maximum`` tokens."""

    name: str = "confidence"
    signal: Signal = "confidence"

    def __init__(self, maximum: int, *, tau: float = 0.4, adapts: bool = False) -> None:
        self._gamma, self._tau, self._adapts = maximum, tau, adapts

    def start(self) -> ConfidenceRow:
        """Return the state of a new request."""
        return ConfidenceRow(self._gamma, self._tau, self._adapts)
