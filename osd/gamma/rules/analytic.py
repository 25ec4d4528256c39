"""The gamma with the most expected tokens a millisecond (on-the-fly adaptation, Eqs. 1 and 2).

    rows' recent acceptance β_i ──┐
                                  ├─> argmax over γ of  Σ_i (1 + β_i + … + β_i^γ) ÷ (γ·a(B) + b(B, B(γ + 1)))
    costs a(B), b(B, N)      ─────┘

A batch drafts and verifies together, so its rows share one γ and the numerator is summed over them; for one
row it is Eq. 1. γ = 0 competes like every other γ. While γ is 0 nothing is learned about acceptance, so one row tries
a token now and then: every round earns 1 % of what a plain one takes, and a try is made when that covers its price,
reckoned as if it brought nothing.

How likely is one drafted token to be accepted? A round is (drafted, accepted). Decoding stops a round at its first
rejection, so a round of γ tokens with V accepted has the likelihood β^V (1 − β)^[V < γ]. Its maximum over several
rounds is Eq. 2, :func:`ratio`. Eq. 10 instead reads y = V + 1 as a geometric variable truncated at γ + 1, whose
maximum, Eq. 11, is :func:`truncated`. Decoding emits more than Eq. 10 expects, so over many rounds Eq. 11 comes out
above the chance that made them, and reaches 1 once the mean of y reaches (γ + 2) / 2. It is written for one γ; windows
differ from round to round here, and the root sought is that of Σ y_j = Σ E[y | γ_j, β]. For one γ that is Eq. 12 with
the first term of its numerator read as (γ + 1) β^(γ+2), as Eq. 11 has it (the γ printed there does not follow).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Literal, NamedTuple

from osd.gamma.base import CostModel, FixedBeforeRound, Observation

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

SHARE = 0.01
"""Share of decoding time that tries may lose."""
BURST = 2
"""Rounds of a try: the drafter reads up once, and the second round times drafting alone."""
BANKED = 4.0
"""Most tries for which credit is kept, so that a long time of drafting does not end in a burst."""
_REFRESH = 64
"""Rounds for which a batch size's costs are used before they are looked up again; sooner while little is known."""

Estimator = Literal["ratio", "truncated"]


class RoundTimes(NamedTuple):
    """What rounds of one batch size take."""

    until: int
    """Number of the round until which it may still be used."""
    changes: int
    """Changes of costs that there had been when it was looked up."""
    ms: Sequence[float]
    """Milliseconds of a round of each γ, from 0 on."""


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
        self._maximum = maximum
        self._times: dict[tuple[int, int], RoundTimes] = {}
        """By batch size, and by how many of its rows share the draft's passes."""
        self._credit = 0.0
        """Milliseconds that tries may lose."""
        self._burst = 0
        """Rounds that are left of a try."""

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
        """Return one γ for all rows; a try's for a few of them, those that the drafter has least to read for."""
        ms = self._rounds_ms(batch)
        if ms is None or self.shared.trials < FIRST_TRIALS:
            gamma = self._first(batch, unread)
            return _of_few(rows, rooms, unread, gamma, max(1, _TRIED // max(1, gamma)))
        gamma = best_gamma([row.acceptance for row in rows], ms)
        if gamma == 0:
            return _of_few(rows, rooms, unread, self._try(batch, unread), 1)
        self._burst, self._credit = 0, self._credit + SHARE * ms[0]
        return [gamma if self._costs.plain_rounds else 0] * len(rows)  # without a plain round, b(B, B) is a guess

    def _rounds_ms(self, batch: int) -> Sequence[float] | None:
        """Return the milliseconds of a round of each γ; None until they are known."""
        costs = self._costs
        key, now = (batch, costs.drafting(batch)), costs.rounds
        kept = self._times.get(key)
        if kept is None or kept.until <= now or kept.changes != costs.changes:
            ms = costs.rounds_ms(batch, self._maximum)
            if ms is None:
                return None
            kept = self._times[key] = RoundTimes(now + 1 + min(_REFRESH, now // 4), costs.changes, ms)
        return kept.ms

    def _first(self, batch: int, unread: Sequence[int]) -> int:
        """gamma.initial before anything is known, less in a batch; and 1 where all that was judged was rejected."""
        if self._initial == 0:
            return self._try(batch, unread)
        hopeless = self.shared.trials >= _LOST and self.shared.accepted == 0
        return 1 if hopeless else min(self._initial, max(1, FIRST_TRIALS // batch))

    def _try(self, batch: int, unread: Sequence[int]) -> int:
        """Return 1 where a try is due or goes on, else 0. A draft that was never timed is taken to cost what a plain
        round does."""
        plain, more = self._costs.verify_ms(batch, batch), self._costs.verify_ms(batch, batch + 1)
        if plain is None or more is None:
            return 0
        if self._burst == 0:
            draft = self._costs.draft_ms(batch, 1) or plain
            price = BURST * (draft + max(0.0, more - plain)) + self._costs.reading_ms * min(unread, default=0)
            self._credit = min(self._credit + SHARE * plain, BANKED * price)
            if self._credit < price:
                return 0
            self._credit -= price
            self._burst = BURST
        self._burst -= 1
        return 1


def best_gamma(betas: Sequence[float], costs: Sequence[float]) -> int:
    """Return the argmax over γ of Eq. 1, its numerator summed over the rows; the least γ where several are equal.

    betas: one acceptance a row, below 1; costs[γ]: milliseconds of a round with γ drafted tokens, which do not fall.
    """
    kept = [1.0] * len(betas)
    tokens, most = 0.0, sum([1 / (1 - beta) for beta in betas])
    best, best_rate = 0, 0.0
    for gamma, cost in enumerate(costs):
        if most <= best_rate * cost:  # no draft can make up for that, and longer ones cost no less
            break
        tokens += sum(kept)
        if tokens > best_rate * cost:
            best, best_rate = gamma, tokens / cost
        kept = list(map(mul, kept, betas))
    return best


Rounds = Sequence[tuple[int, int]]
"""Rounds as (drafted, accepted), drafted ≥ 1."""

_GRID = 128


def ratio(accepted: int, rejections: int) -> float | None:
    """Return Eq. 2: ΣV ÷ (ΣV + number of rounds with V < γ). None when nothing was drafted."""
    trials = accepted + rejections
    return accepted / trials if trials else None


def truncated_mean(beta: float, gamma: int) -> float:
    """Return E[y] under Eq. 10, which is Eq. 12: from 1 at β = 0 up to (γ + 2) / 2 at β = 1."""
    weight = total = mean = 1.0
    for y in range(2, gamma + 2):
        weight *= beta
        total += weight
        mean += y * weight
    return mean / total


@lru_cache(maxsize=256)
def _table(gamma: int) -> tuple[float, ...]:
    return tuple(truncated_mean(i / _GRID, gamma) for i in range(_GRID + 1))


def truncated(rounds: Rounds) -> float | None:
    """Find the root of Eq. 11 in [0, 1] from tables of Eq. 12 (a search, then a straight line between
    entries)."""
    if not rounds:
        return None
    wanted = float(sum(accepted + 1 for _, accepted in rounds))
    tables = [_table(drafted) for drafted, _ in rounds]
    low, high = 0, _GRID
    at_low, at_high = float(len(rounds)), sum(table[_GRID] for table in tables)
    if wanted >= at_high:
        return 1.0
    while high - low > 1:
        middle = (low + high) // 2
        value = sum([table[middle] for table in tables])
        low, at_low, high, at_high = (low, at_low, middle, value) if value > wanted else (middle, value, high, at_high)
    return (low + (wanted - at_low) / (at_high - at_low)) / _GRID
