"""Decoded texts by a table of costs: what their rounds would have taken on the machine that it describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from benchmarks.figures import PaperFigure, ratio_of_sums
from benchmarks.gamma.costs import CostTable

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CostedRound:
    """One round of one text."""

    passes: int
    """Passes of the draft: a tree's depth before nodes were left out, a chain's tokens."""
    drafted: int
    """Drafted tokens that the target verified."""
    accepted: int

    def draft_ms(self, costs: CostTable) -> float:
        """Milliseconds of drafting, by a table."""
        return costs.draft_ms(1, self.passes) if self.passes else 0.0

    def verify_ms(self, costs: CostTable) -> float:
        """Milliseconds of the target's pass, by a table."""
        return costs.verify_ms(1, self.drafted + 1)


@dataclass(frozen=True, slots=True)
class CostedText:
    """What came of one text."""

    data_set: str
    tokens: Sequence[int]
    rounds: list[CostedRound]


@dataclass(frozen=True, slots=True)
class CostedTexts:
    """An arm's texts by a cost table, (n,) each."""

    data_sets: npt.NDArray[np.str_]
    tokens: Floats
    draft_ms: Floats
    verify_ms: Floats
    passes: Floats
    drafted: Floats
    accepted: Floats
    rounds: Floats

    @classmethod
    def of(cls, texts: Sequence[CostedText], costs: CostTable) -> CostedTexts:
        """Tell the time of texts."""

        def summed(value: Callable[[CostedRound], float]) -> Floats:
            return np.array([sum(map(value, text.rounds)) for text in texts], float)

        return cls(
            np.array([text.data_set for text in texts]), np.array([len(text.tokens) for text in texts], float),
            summed(lambda each: each.draft_ms(costs)), summed(lambda each: each.verify_ms(costs)),
            summed(lambda each: each.passes), summed(lambda each: each.drafted), summed(lambda each: each.accepted),
            summed(lambda _: 1),
        )  # fmt: skip

    def only(self, data_set: str) -> CostedTexts:
        """Return the texts of one data set."""
        mine = self.data_sets == data_set
        return CostedTexts(*(getattr(self, each.name)[mine] for each in fields(self)))

    @property
    def ms(self) -> Floats:
        """Milliseconds of each text."""
        return self.draft_ms + self.verify_ms

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return float(1e3 * self.tokens.sum() / self.ms.sum())

    @property
    def accepted_of_drafted(self) -> PaperFigure:
        """The share of the drafted tokens that is accepted, over texts."""
        return ratio_of_sums(self.accepted, self.drafted) if self.drafted.sum() else PaperFigure(0.0, 0.0)

    @property
    def discard_rate(self) -> float:
        """Drafted tokens that were not accepted, a token of the texts."""
        return float((self.drafted - self.accepted).sum() / self.tokens.sum())

    @property
    def verification_rate(self) -> float:
        """Target passes a token of the texts."""
        return float(self.rounds.sum() / self.tokens.sum())

    def faster_than(self, other: CostedTexts) -> PaperFigure:
        """Return its speed ÷ another arm's on the same texts."""
        return ratio_of_sums(other.ms, self.ms)
