"""What ``osd bench serve`` measures: how many clients, for how long, in how many turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from osd.bench.serve.trace import ArrivalTrace

SITTINGS = 4
"""Parts in which the turns are measured where the server is compared with the engine alone."""


@dataclass(frozen=True, slots=True)
class ServePlan:
    """What a run of `osd bench serve` measures."""

    levels: Sequence[int]
    """Clients at a time."""
    seconds: float
    """Seconds of each arm at each level."""
    turns: int
    """Into so many parts they are divided."""
    swaps: int
    """New versions while goodput is measured, over all levels."""
    max_tokens: int
    traces: Sequence[ArrivalTrace] = ()

    def facts(self) -> dict[str, Any]:
        """As JSON keeps it."""
        traces = [trace.name for trace in self.traces]
        return {
            "levels": list(self.levels), "seconds": self.seconds, "turns": self.turns, "swaps": self.swaps,
            "max_tokens": self.max_tokens, "traces": traces,
        }  # fmt: skip

    def sittings(self, at: int) -> list[list[tuple[int, int]]]:
        """(clients, turns) that are measured before everything begins anew; of the level ``at`` its part of each."""
        others = [(level, self.turns) for level in self.levels if level != at]
        ends = [self.turns * part // SITTINGS for part in range(SITTINGS + 1)]
        parts = [[(at, end - begin)] for begin, end in pairwise(ends) if end > begin]
        return [[*others, *parts[0]], *parts[1:]]
