"""The gamma with the most expected tokens a millisecond (on-the-fly adaptation, Eqs. 1 and 2).

    rows' recent acceptance β_i ──┐
                                  ├─> argmax over γ of  Σ_i (1 + β_i + … + β_i^γ) ÷ (γ·a(B) + b(B, B(γ + 1)))
    costs a(B), b(B, N)      ─────┘

A batch drafts and verifies together, so its rows share one γ and the numerator is summed over them; for one
row it is Eq. 1. γ = 0 competes like every other γ. What a choice leaves unmeasured, :mod:`osd.gamma.costs.probing`
goes and measures for less than 1 % of decoding time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import Literal

from osd.gamma.base import CostModel, FixedBeforeRound, Observation
from osd.gamma.costs.probing import Prober
from osd.gamma.costs.round_times import RoundTimes, Times, best_gamma
from osd.gamma.rules.acceptance_rate import truncated

ACCEPTANCE_MAX = 0.98
"""Acc_max, the largest acceptance that an estimate may have (section 4.1)."""
PRIOR_TRIALS = 6.0
"""Weight of the engine's recent acceptance beside a request's own history, in drafted tokens."""
SHARED_ROUNDS = 64
"""Rounds, of any request, that make up the engine's recent acceptance."""
FIRST_TRIALS = 8
"""Judged tokens, of any request, before acceptance is believed at all; until then gamma.initial."""
_TRIED = 4
"""About how many tokens all rows together draft in such a round."""
_LOST = 2
"""Judged tokens that were all rejected, after which the first rounds draft one token instead of gamma.initial."""

Estimator = Literal["ratio", "truncated"]


class History:
    """The last rounds that drafted something, and their sums."""

    __slots__ = ("accepted", "rejections", "rounds")

    def __init__(self, length: int) -> None:
        self.rounds: deque[tuple[int, int]] = deque(maxlen=length)
        self.accepted = 0
        self.rejections = 0

    @property
    def trials(self) -> int:
        """Number of verified tokens: accepted and rejected."""
        return self.accepted + self.rejections

    def add(self, drafted: int, accepted: int) -> None:
        """Add a round and drop the oldest."""
        if len(self.rounds) == self.rounds.maxlen:
            old_drafted, old_accepted = self.rounds[0]
            self.accepted -= old_accepted
            self.rejections -= old_accepted < old_drafted
        self.rounds.append((drafted, accepted))
        self.accepted += accepted
        self.rejections += accepted < drafted


_NOTHING = History(1)


def _of_few(rows: Sequence[object], rooms: Sequence[int], unread: Sequence[int], gamma: int, count: int) -> list[int]:
    """Return γ for ``count`` rows that have room for it, those with the least to read first; 0 for the others."""
    behind = unread or [0] * len(rows)
    some = sorted((i for i in range(len(rows)) if rooms[i] > 0), key=lambda i: behind[i])[:count]
    return [gamma if i in some else 0 for i in range(len(rows))]


class AnalyticRow:
    """State of one request: its last h rounds."""

    __slots__ = ("_acceptance", "_controller", "_history")

    def __init__(self, controller: AnalyticController) -> None:
        self._controller = controller
        self._history = History(controller.history)
        self._acceptance: float | None = None

    @property
    def acceptance(self) -> float:
        """β: the request's acceptance, blended with the engine's; the engine's current one while the request has no
        history."""
        return self._controller.unknown if self._acceptance is None else self._acceptance

    def observe(self, seen: Observation) -> None:
        """Add a round; one without drafted tokens tells nothing about acceptance."""
        if seen.drafted:
            self._history.add(seen.drafted, seen.accepted)
            self._controller.shared.add(seen.drafted, seen.accepted)
            self._acceptance = self._controller.estimate(self._history)


class AnalyticController(FixedBeforeRound):
    """The analytic gamma rule. ``history`` is the paper's h."""

    name: str = "analytic"

    def __init__(
        self,
        costs: CostModel,
        *,
        initial: int,
        maximum: int,
        history: int = 12,
        estimator: Estimator = "ratio",
        acceptance_max: float = ACCEPTANCE_MAX,
        prior_trials: float = PRIOR_TRIALS,
    ) -> None:
        self.history = history
        self.shared = History(SHARED_ROUNDS)
        self._costs = costs
        self._initial = initial
        self._estimator = estimator
        self._acceptance_max = acceptance_max
        self._prior_trials = prior_trials
        self._prober = Prober(costs)
        self._times = RoundTimes(costs, maximum)
        self._resting: tuple[int, Sequence[AnalyticRow]] = 0, ()
        """The batch size and the rows for which γ was 0 in the last round."""
        self._quiet = 0
        """Coming rounds in which it stays 0 for them: nothing is verified, no probe can be afforded, times hold."""
        self._rested = 0
        """Rounds since the last decision."""

    @property
    def unknown(self) -> float:
        """β of a request without history."""
        return self.estimate(_NOTHING)

    def start(self) -> AnalyticRow:
        """Return the state of a new request, which begins with the engine's recent acceptance."""
        return AnalyticRow(self)

    def estimate(self, own: History) -> float:
        """Return β: Eq. 2 (or 11) over the request's last h rounds, and the engine's recent acceptance as
        ``prior_trials`` further trials (0: the paper's own, as soon as there is history); at most Acc_max."""
        shared = self.shared
        prior = (shared.accepted + 1) / (shared.trials + 2)  # one of each: a single round must not give 0 or 1
        trials = own.trials
        accepted = float(own.accepted)
        if self._estimator == "truncated" and trials:
            accepted = trials * (truncated(own.rounds) or 0.0)
        weight = trials + self._prior_trials
        beta = (accepted + self._prior_trials * prior) / weight if weight else prior
        return min(beta, self._acceptance_max)

    def plan(
        self, rows: Sequence[AnalyticRow], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()
    ) -> list[int]:
        """Return one γ for all rows; a probe's for a few of them, those that the drafter has least to read for."""
        if self._quiet and self._resting == (batch, rows):
            self._quiet -= 1
            self._rested += 1
            return [0] * len(rows)
        self._prober.settle(1 + self._rested)
        self._quiet = self._rested = 0
        return self._decide(rows, rooms, batch, unread)

    def _decide(
        self, rows: Sequence[AnalyticRow], rooms: Sequence[int], batch: int, unread: Sequence[int]
    ) -> list[int]:
        times = self._times.of(batch)
        if times is None or self.shared.trials < FIRST_TRIALS:
            gamma = self._first(batch)
            return _of_few(rows, rooms, unread, gamma, max(1, _TRIED // max(1, gamma)))
        gamma, gain = best_gamma([row.acceptance for row in rows], times.rounds)
        chosen = self._prober.instead(gamma, gain, batch, times.rounds if gamma else times.probe)
        if not (gamma or chosen):
            self._rest(rows, batch, times)
        return [chosen] * len(rows) if gamma else _of_few(rows, rooms, unread, chosen, 1)

    def _rest(self, rows: Sequence[AnalyticRow], batch: int, times: Times) -> None:
        """Skip decisions until a probe can be afforded or times are old, as long as the rows stay the same."""
        self._resting = batch, list(rows)
        self._quiet = max(0, min(ceil(self._prober.short_ms / times.rounds[0]), times.until - self._costs.rounds) - 1)

    def _first(self, batch: int) -> int:
        """gamma.initial before anything is known, less in a batch; and 1 where all that was judged was rejected."""
        if self._initial == 0:
            return self._prober.blind(batch)
        hopeless = self.shared.trials >= _LOST and self.shared.accepted == 0
        return 1 if hopeless else min(self._initial, max(1, FIRST_TRIALS // batch))
