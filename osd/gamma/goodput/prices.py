"""What one batch size's passes cost just now, as the few numbers that sizing a draft needs.

A round of B rows that drafts k passes and n tokens is taken to cost plain + begin + k · draft + V(n). ``begin`` is what
it takes to set up a first draft pass. V is what verifying takes (:mod:`osd.gamma.goodput.growth`); its first token may
well be the dearest, for products over one row of numbers are cheaper than over two. The price of a draft pass is taken
around the usual number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from osd.gamma.costs.model import TRUSTED, CostModel, rounds_left
from osd.gamma.goodput.growth import Growth, Point

_REFRESH = 256
"""Rounds for which a batch size's costs are used before they are looked up again; sooner while little is known."""
_ONCE = 1.0
"""Weight of what was timed once, which counts only where nothing was timed oftener: kernels are made for the shape of a
pass when it first comes, in several times what it takes."""
_LEARNS = 0.03
"""What a round changes of the usual number of draft passes."""


@dataclass(frozen=True, slots=True)
class Prices:
    """All in milliseconds."""

    rounds: int
    """Rounds that had been timed by then."""
    plain: float
    """b(B, B): a target pass without drafts."""
    begin: float
    """What drafting at all costs."""
    draft: float
    """a(B): one more draft pass."""
    verifying: Growth
    """V."""

    def jump(self, rows: int) -> float:
        """Return the milliseconds of verifying any drafted token at all, shared by so many rows; 0 for one row."""
        # one row's first token is all that there is
        return max(0.0, self.verifying.of(1) - self._another(rows)) if rows > 1 else 0.0

    def by_depth(self, rows: int, most: int) -> list[float]:
        """Return the milliseconds of each row's first, second, … of ``most`` drafted tokens, beside the jump."""
        taken = [self.verifying.of(rows * depth) for depth in range(most + 1)]
        first, *later = [(more - less) / rows for less, more in pairwise(taken)]
        return [self._another(rows) if rows > 1 else first, *later]

    def _another(self, rows: int) -> float:
        """Return the milliseconds of another row's first token."""
        return (self.verifying.of(rows) - self.verifying.of(1)) / (rows - 1)

    @property
    def try_ms(self) -> float:
        """Milliseconds of a round of one draft pass and one drafted token."""
        return self.plain + self.begin + self.draft + self.verifying.of(1)


def prices_of(costs: CostModel, batch: int, passes: float) -> Prices | None:
    """Return prices around a usual round of so many draft passes; None while drafting or verifying was never timed."""
    depth = max(1, round(passes))
    plain = costs.verify_ms(batch, batch)
    once, twice = costs.draft_ms(batch, depth), costs.draft_ms(batch, 2 * depth)
    if plain is None or once is None or twice is None:
        return None
    draft = min(once, max(0.2 * once, twice - once)) / depth
    return Prices(costs.rounds, plain, once - depth * draft, draft, _verifying(costs, batch, plain))


def _verifying(costs: CostModel, batch: int, plain: float) -> Growth:
    """Return the price line of passes that verified n > 0 drafted tokens.

    The cost model's own line counts as one more timing, n = 2 a row, which decides while there is none. Where little
    was timed nearby, or long ago, it counts as so much cheaper than it seemed: what looks too dear is never timed
    again, what looks too cheap is at once.
    """
    guess = costs.verify_ms(batch, 3 * batch) or plain
    timed = [(tokens - batch, ms - plain, weight) for tokens, ms, weight in costs.verified_ms(batch) if tokens > batch]
    timed = [point for point in timed if point[2] > _ONCE] or timed
    timed = [(n, ms * min(1.0, timed_near(n, timed) / TRUSTED), weight) for n, ms, weight in timed]
    return Growth(timed, *line_through([(2 * batch, guess - plain, 1.0), *timed]))


def timed_near(n: int, points: Sequence[Point]) -> float:
    """Return the weight of timings of ``n`` drafted tokens, and of half or twice as many by half."""
    # rows of a batch draft to different lengths, and no shape of theirs comes often
    return sum(weight * min(n, other) / max(n, other) for other, _, weight in points)


def line_through(points: Sequence[Point]) -> tuple[float, float]:
    """Return (jump, token) of jump + token · n, by least squares; neither is negative."""
    total = sum(weight for _, _, weight in points)
    n_mean = sum(weight * n for n, _, weight in points) / total
    mean = max(0.0, sum(weight * ms for _, ms, weight in points) / total)
    spread = sum(weight * (n - n_mean) ** 2 for n, _, weight in points)
    rise = sum(weight * (n - n_mean) * ms for n, ms, weight in points)
    token = min(max(0.0, rise / spread), mean / n_mean) if spread > 0 else mean / n_mean
    return mean - token * n_mean, token


class PriceList:
    """Prices by batch size, which are used for some rounds before costs are looked up again."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._known: dict[tuple[int, int], Prices] = {}
        self._usual: dict[int, float] = {}
        """Draft passes of a usual round that speculates, by batch size."""

    def of(self, batch: int) -> Prices | None:
        """Return the prices of a batch size; None while drafting or verifying was never timed."""
        costs = self._costs
        key = batch, costs.drafting(batch)
        known = self._known.get(key)
        if known and self.left(known) > 0:
            return known
        found = prices_of(costs, batch, self._usual.get(batch, 1.0))
        if found:
            self._known[key] = found
        return found

    def left(self, prices: Prices) -> int:
        """Return the rounds for which these prices may still be used."""
        return rounds_left(prices.rounds, self._costs.rounds, _REFRESH)

    def saw(self, batch: int, rounds: int, passes: int) -> None:
        """Learn the usual number of draft passes from so many rounds that speculated."""
        each = passes / rounds
        before = self._usual.get(batch, each)
        self._usual[batch] = before + min(1.0, _LEARNS * rounds) * (each - before)
