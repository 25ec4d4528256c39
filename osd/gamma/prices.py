"""What one batch size's passes cost just now, as the few numbers that sizing a draft needs.

A round of B rows that drafts k passes and n tokens is taken to cost plain + begin + k · draft + n · token. ``begin`` is
what speculating costs however little is drafted: products over one row of numbers are cheaper than over two, and a
first draft pass has to be set up. The price of a draft pass is taken around the usual number of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from osd.gamma.costs import CostModel
from osd.gamma.growth import Growth

_REFRESH = 16
"""Rounds for which a batch size's costs are used before they are looked up again; sooner while little is known."""
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
    """What speculating at all costs."""
    draft: float
    """a(B): one more draft pass."""
    token: float
    """b'(N): one more drafted token in the target's pass, whichever it is."""
    growth: Growth
    """The same by how many there are."""

    def token_at(self, depth: int, rows: int) -> float:
        """One more drafted token where each of so many rows has its ``depth``-th. What the first has beyond the second
        belongs to ``begin``."""
        depth = max(2, depth)
        return self.growth.a_token(rows * (depth - 1), rows * depth)


def prices_of(costs: CostModel, batch: int, passes: float) -> Prices | None:
    """Prices around a usual round of so many draft passes; None while drafting or verifying was never timed."""
    depth = max(1, round(passes))
    plain = costs.verify_ms(batch, batch)
    once, twice = costs.draft_ms(batch, depth), costs.draft_ms(batch, 2 * depth)
    if plain is None or once is None or twice is None:
        return None
    jump, token, growth = _verifying(costs, batch, plain)
    draft = min(once, max(0.2 * once, twice - once)) / depth
    return Prices(costs.rounds, plain, jump + once - depth * draft, draft, token, growth)


def _verifying(costs: CostModel, batch: int, plain: float) -> tuple[float, float, Growth]:
    """(jump, token) of the line plain + jump + token · n through the passes that verified n > 0 drafted tokens, and
    their growth.

    Least squares, with the cost model's own line as one more timing, n = 2 a row, which decides while there is none.
    """
    guess = costs.verify_ms(batch, 3 * batch) or plain
    timed = [(tokens - batch, ms, weight) for tokens, ms, weight in costs.verified_ms(batch) if tokens > batch]
    points = [(2 * batch, guess, 1.0), *timed]
    total = sum(weight for _, _, weight in points)
    n_mean = sum(weight * n for n, _, weight in points) / total
    ms_mean = sum(weight * ms for _, ms, weight in points) / total
    spread = sum(weight * (n - n_mean) ** 2 for n, _, weight in points)
    rise = sum(weight * (n - n_mean) * (ms - ms_mean) for n, ms, weight in points)
    over = max(0.0, ms_mean - plain)
    token = min(max(0.0, rise / spread), over / n_mean) if spread > 0 else over / n_mean
    jump = over - token * n_mean
    return jump, token, Growth([(n, ms - plain, weight) for n, ms, weight in timed], jump, token)


class PriceList:
    """Prices by batch size, which are used for some rounds before costs are looked up again."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._known: dict[tuple[int, int], Prices] = {}
        self._usual: dict[int, float] = {}
        """Draft passes of a usual round that speculates, by batch size."""

    def of(self, batch: int) -> Prices | None:
        """None while drafting or verifying was never timed."""
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
        """Rounds for which they may still be used."""
        return prices.rounds + min(_REFRESH, 1 + prices.rounds // 4) - self._costs.rounds

    def saw(self, batch: int, passes: int) -> None:
        """A round that speculated made so many draft passes."""
        before = self._usual.get(batch, float(passes))
        self._usual[batch] = before + _LEARNS * (passes - before)
