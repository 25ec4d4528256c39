"""The gamma with the most expected tokens a millisecond (on-the-fly adaptation, Eqs. 1 and 2).

    rows' recent acceptance β_i ──┐
                                  ├─> argmax over γ of  Σ_i (1 + β_i + … + β_i^γ) ÷ (γ·a(B) + b(B, B(γ + 1)))
    costs a(B), b(B, N)      ─────┘

A batch drafts and verifies together, so its rows share one γ and the numerator is summed over them; for one
row it is Eq. 1. γ = 0 competes like every other γ. What a choice leaves unmeasured, :mod:`osd.gamma.probing`
goes and measures for less than 1 % of decoding time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Literal, NamedTuple

from osd.gamma.acceptance_rate import truncated
from osd.gamma.base import CostModel, Observation, Settled
from osd.gamma.probing import Prober

ACCEPTANCE_MAX = 0.98
"""Acc_max: an estimate near 1 is never believed (section 4.1)."""
PRIOR_TRIALS = 6.0
"""Drafted tokens that the engine's recent acceptance weighs beside a request's own history."""
SHARED_ROUNDS = 64
"""Rounds, of any request, that make up the engine's recent acceptance."""
FIRST_TRIALS = 8
"""Judged tokens, of any request, before acceptance is believed at all; until then gamma_initial."""
_TRIED = 4
"""Drafted tokens of such a round, about, of all rows together."""
_LOST = 2
"""Judged tokens that were all rejected, after which the first rounds draft one token instead of gamma_initial."""
_REFRESH = 64
"""Rounds for which a batch size's costs are used before they are looked up again; sooner while little is known."""

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
        """Tokens judged: accepted and rejected."""
        return self.accepted + self.rejections

    def add(self, drafted: int, accepted: int) -> None:
        """A round; the oldest is forgotten."""
        if len(self.rounds) == self.rounds.maxlen:
            old_drafted, old_accepted = self.rounds[0]
            self.accepted -= old_accepted
            self.rejections -= old_accepted < old_drafted
        self.rounds.append((drafted, accepted))
        self.accepted += accepted
        self.rejections += accepted < drafted


_NOTHING = History(1)


def best_gamma(betas: Sequence[float], costs: Sequence[float]) -> tuple[int, float]:
    """argmax over γ of Eq. 1, its numerator summed over the rows; the least γ where several are equal.

    betas: one acceptance a row, below 1; costs[γ]: milliseconds of a round with γ drafted tokens, which do not fall.
    Also gives how many times the tokens a millisecond of γ = 0 that is.
    """
    if len(betas) == 1:
        return _best_of_one(betas[0], costs)
    kept = [1.0] * len(betas)
    tokens, most = 0.0, sum([1 / (1 - beta) for beta in betas])
    best, best_rate, plain_rate = 0, 0.0, len(betas) / costs[0]
    for gamma, cost in enumerate(costs):
        if most <= best_rate * cost:  # no draft can make up for that, and longer ones cost no less
            break
        tokens += sum(kept)
        if tokens > best_rate * cost:
            best, best_rate = gamma, tokens / cost
        kept = list(map(mul, kept, betas))
    return best, best_rate / plain_rate


def _best_of_one(beta: float, costs: Sequence[float]) -> tuple[int, float]:
    """The same for one row, which is asked every round: in a third of the time."""
    kept, tokens, most = 1.0, 0.0, 1 / (1 - beta)
    best, best_rate = 0, 0.0
    for gamma, cost in enumerate(costs):
        if most <= best_rate * cost:
            break
        tokens += kept
        if tokens > best_rate * cost:
            best, best_rate = gamma, tokens / cost
        kept *= beta
    return best, best_rate * costs[0]


def _of_few(rows: Sequence[object], rooms: Sequence[int], unread: Sequence[int], gamma: int, count: int) -> list[int]:
    """γ for so many rows that have room for it, those with the least to read first; 0 for the others."""
    behind = unread or [0] * len(rows)
    some = sorted((i for i in range(len(rows)) if rooms[i] > 0), key=lambda i: behind[i])[:count]
    return [gamma if i in some else 0 for i in range(len(rows))]


class AnalyticRow:
    """One request: its last h rounds."""

    __slots__ = ("_acceptance", "_controller", "_history")

    def __init__(self, controller: AnalyticController) -> None:
        self._controller = controller
        self._history = History(controller.history)
        self._acceptance: float | None = None

    @property
    def acceptance(self) -> float:
        """β: the request's acceptance, blended with the engine's; the engine's as it is now while the request has
        none of its own."""
        return self._controller.unknown if self._acceptance is None else self._acceptance

    def observe(self, seen: Observation) -> None:
        """A round without drafted tokens says nothing about acceptance."""
        if seen.drafted:
            self._history.add(seen.drafted, seen.accepted)
            self._controller.shared.add(seen.drafted, seen.accepted)
            self._acceptance = self._controller.estimate(self._history)


class Times(NamedTuple):
    """Milliseconds, of one batch size."""

    at: int
    """Rounds that had been timed by then."""
    rounds: Sequence[float]
    """A round of each γ, from 0 on."""
    probe: Sequence[float]
    """A plain round, and a probe's."""


class AnalyticController(Settled):
    """See the module. ``history`` is the paper's h."""

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
        self._maximum = maximum
        self._estimator = estimator
        self._acceptance_max = acceptance_max
        self._prior_trials = prior_trials
        self._prober = Prober(costs)
        self._kept: dict[tuple[int, int], Times] = {}

    @property
    def unknown(self) -> float:
        """β of a request without history."""
        return self.estimate(_NOTHING)

    def start(self) -> AnalyticRow:
        """A new request, which begins with the engine's recent acceptance."""
        return AnalyticRow(self)

    def estimate(self, own: History) -> float:
        """β: Eq. 2 (or 11) over the request's last h rounds, and the engine's recent acceptance as
        ``prior_trials`` further trials (0: the paper's own, as soon as there is history); at most Acc_max."""
        shared = self.shared
        prior = (shared.accepted + 1) / (shared.trials + 2)  # one of each: a single round must not say 0 or 1
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
        """One γ for all rows; a few of them where it is a try, those that the drafter has least to read for."""
        self._prober.settle()
        times = self._times(batch)
        if times is None or self.shared.trials < FIRST_TRIALS:
            gamma = self._first(batch)
            return _of_few(rows, rooms, unread, gamma, max(1, _TRIED // max(1, gamma)))
        gamma, gain = best_gamma([row.acceptance for row in rows], times.rounds)
        chosen = self._prober.instead(gamma, gain, batch, times.rounds if gamma else times.probe)
        return [chosen] * len(rows) if gamma else _of_few(rows, rooms, unread, chosen, 1)

    def _first(self, batch: int) -> int:
        """gamma_initial before anything is known, less in a batch; and 1 where all that was judged was rejected."""
        if self._initial == 0:
            return self._prober.blind(batch)
        hopeless = self.shared.trials >= _LOST and self.shared.accepted == 0
        return 1 if hopeless else min(self._initial, max(1, FIRST_TRIALS // batch))

    def _times(self, batch: int) -> Times | None:
        """What rounds take; None until that is known of each γ from 0 to gamma_max."""
        now, key = self._costs.rounds, (batch, self._costs.drafting(batch))
        kept = self._kept.get(key)
        if kept is not None and kept.at + min(_REFRESH, 1 + kept.at // 4) > now:
            return kept
        found = [self._costs.round_ms(batch, gamma) for gamma in range(self._maximum + 1)]
        known = [ms for ms in found if ms is not None]
        if len(known) < len(found):
            return None
        known = list(accumulate(known, max))  # more of them take no less, whatever few timings say
        self._kept[key] = fresh = Times(now, known, self._of_a_probe(known, batch))
        return fresh

    def _of_a_probe(self, rounds: Sequence[float], batch: int) -> Sequence[float]:
        """Milliseconds of a round of γ = 0, and of one in which a single row has one drafted token."""
        plain, more = self._costs.verify_ms(batch, batch), self._costs.verify_ms(batch, batch + 1)
        step = self._costs.draft_ms(batch, 1)
        return rounds if plain is None or more is None or step is None else (rounds[0], rounds[0] + step + more - plain)
