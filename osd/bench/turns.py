"""Two turns of decoding beside each other, compared by what rounds of their kinds usually take.

Which rounds a turn happens to have, with how many rows and tokens drafted, moves its time by more than what is looked
for, so a turn is told by its seconds ÷ those of as many rounds of the same kinds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Kind = tuple[int, int]
"""Of a round: rows, and the most that one of them had drafted."""


class Compared(NamedTuple):
    """A pair of turns."""

    ratio: float
    """Seconds without ÷ with recording, each ÷ what rounds of the same kinds take."""
    wait: float
    """Share of its time that the decode loop waited with recording, less that without."""


@dataclass(slots=True)
class Turn:
    """Some rounds."""

    seconds: float = 0.0
    idle: float = 0.0
    """Of them, in which this thread had no processor."""
    rounds: list[tuple[Kind, float]] = field(default_factory=list)
    """Each one's seconds."""

    def slowness(self, usual: Mapping[Kind, float]) -> float:
        """Its seconds ÷ those that rounds of these kinds usually take."""
        return self.seconds / sum(usual[kind] for kind, _ in self.rounds)


class Both(NamedTuple):
    """Two turns beside each other."""

    without: Turn
    recorded: Turn
    wrote: bool
    """Whether the recorder's thread was asked to write."""

    def compared(self, usual: Mapping[Kind, float]) -> Compared:
        """How much the one differs from the other."""
        without, recorded = self.without, self.recorded
        wait = recorded.idle / recorded.seconds - without.idle / without.seconds
        return Compared(without.slowness(usual) / recorded.slowness(usual), wait)


def usual_seconds(turns: Iterable[Turn]) -> dict[Kind, float]:
    """The median of each kind's rounds, recorded or not."""
    seconds: dict[Kind, list[float]] = {}
    for kind, took in (timed for turn in turns for timed in turn.rounds):
        seconds.setdefault(kind, []).append(took)
    return {kind: statistics.median(each) for kind, each in seconds.items()}
