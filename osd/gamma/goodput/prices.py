"""What passes take, in plain passes of a batch: what goodput weighs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from osd.gamma.base import CostModel
from osd.gamma.costs.pass_times import FRESH


class Prices(NamedTuple):
    """What a batch's passes take, ÷ a plain pass of it."""

    until: int
    """Round up to which they hold."""
    changes: int
    """Changes of costs that there had been when they were looked up."""
    draft: list[float]
    """By the number of draft passes, from 0 on."""
    least: float
    """The cheapest draft pass after others."""
    verify: list[float]
    """By the number of drafted tokens verified, of all rows together, from 0 on: beyond a plain pass."""
    read: float
    """A token that the drafter must read before it drafts."""


class PriceList:
    """The prices of batches, looked up again once costs have changed or are no longer fresh."""

    def __init__(self, costs: CostModel, maximum: int) -> None:
        """``maximum``: the most draft passes of a round."""
        self._costs, self._maximum = costs, maximum
        self._known: dict[tuple[int, int], Prices] = {}

    def of(self, batch: int) -> Prices | None:
        """Return a batch's prices; None while drafting or verifying was never timed."""
        costs = self._costs
        key, now = (batch, costs.drafting(batch)), costs.rounds
        found = self._known.get(key)
        if (found is None or found.until <= now or found.changes != costs.changes) and costs.known:
            found = self._known[key] = self._look_up(batch)
        return found

    def _look_up(self, batch: int) -> Prices:
        costs, most = self._costs, batch * (self._maximum + 2)
        drafting = costs.draft_curve(batch, self._maximum)
        verifying = costs.verify_curve(batch, batch + most)
        passes = np.arange(1, self._maximum + 1)
        plain = verifying.ms[0]
        draft = np.maximum.accumulate(passes * np.interp(passes, drafting.size, drafting.ms)) / plain
        tokens = batch + np.arange(most + 1)
        verify = np.interp(tokens, verifying.size, verifying.ms) / plain - 1
        until = costs.rounds + 1 + min(FRESH, costs.rounds // 2)
        least = min(float(draft[0]), float(np.diff(draft).min(initial=np.inf)))
        read = costs.reading_ms / costs.load / float(plain)
        return Prices(until, costs.changes, [0.0, *draft.tolist()], least, verify.tolist(), read)
