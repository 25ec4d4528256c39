"""One request under the goodput rule: how far its draft is likely to be accepted."""

from __future__ import annotations

from collections.abc import Callable

from osd.gamma.base import Observation
from osd.gamma.calibration import START, Calibration, Lean, bin_of


class GoodputRow:
    """One request."""

    __slots__ = ("_calibration", "_hear", "ask_after", "bins", "chances", "emitted", "lean", "survival", "tries")

    def __init__(self, calibration: Calibration, hear: Callable[[Observation], None]) -> None:
        """``hear`` is told of every round."""
        self._calibration, self._hear = calibration, hear
        self.lean = Lean()
        self.emitted = 0
        """Tokens so far."""
        self.tries = 0
        """Rounds in which it was probed."""
        self.ask_after = 0
        """Tokens before which it is not probed again."""
        self.survival = 1.0
        """S: of the draft so far."""
        self.bins: list[int] = []
        """Of this round's draft passes."""
        self.chances: list[float] = []
        """What the calibration gave each of them."""

    def begin(self) -> None:
        """A round."""
        self.survival = 1.0
        self.bins, self.chances = [], []

    def look(self, peak: float) -> None:
        """A draft pass found this peak."""
        found = bin_of(peak)
        self._calibration.passed(self.bins[-1] if self.bins else START, found)
        chance = self._calibration.chance(found)
        self.bins.append(found)
        self.chances.append(chance)
        self.survival *= self.lean.of(chance)

    def hope(self, price: float) -> float:
        """f: expected tokens from one more draft pass, less what verifying it costs; the row may still decline it."""
        worth, survival, odds = 0.0, self.survival, self.lean.odds
        for weight, chance in self._calibration.following(self.bins[-1] if self.bins else START):
            leaning = odds * chance
            gain = survival * leaning / (leaning + (1.0 - chance)) - price
            if gain > 0:
                worth += weight * gain
        return worth

    def observe(self, seen: Observation) -> None:
        """Verdicts end with the first rejection."""
        for i in range(min(seen.accepted + 1, seen.drafted, len(self.bins))):
            accepted = i < seen.accepted
            self._calibration.saw(self.bins[i], accepted)
            self.lean.saw(self.chances[i], accepted)
        self.emitted += seen.accepted + 1
        self._hear(seen)


class Tally:
    """What the rows of a round drafted and emitted."""

    __slots__ = ("drafted", "emitted", "passes", "rows")

    def __init__(self) -> None:
        self.rows = self.passes = self.drafted = self.emitted = 0

    def add(self, seen: Observation) -> None:
        """One row's round."""
        self.rows += 1
        self.drafted += seen.drafted
        self.emitted += seen.accepted + 1
