"""What ``osd bench serve`` measures, turn after turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from osd.bench.plans import ServePlan
from osd.bench.serve.load import Load

SITTINGS = 4
"""Parts in which the turns are measured where the server is compared with the engine alone."""


@dataclass(frozen=True, slots=True)
class LevelTurn:
    """Every arm in turn, with so many clients."""

    clients: int
    turn: int
    """Its number among those with as many clients."""
    number: int
    """Its number among all."""
    sitting: int
    """All begins anew with the next one."""

    def __str__(self) -> str:
        return f"{self.clients} at a time, turn {self.turn + 1}"


@dataclass(frozen=True, slots=True)
class ServeTurn:
    """What came of a turn."""

    job: LevelTurn
    loads: dict[str, Load]
    """By arm, the engine alone among them where it took part."""
    published: int
    """Versions that were made current."""
    served: int
    """Versions of this sitting that an answer named for the first time."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which turns a plan has, where a full batch has so many rows."""

    plan: ServePlan
    rows: int

    @property
    def compared_at(self) -> int:
        """Clients at which the server is compared with the engine alone: the level that is nearest a full batch."""
        return min(self.plan.concurrency, key=lambda level: abs(level - self.rows))

    def jobs(self) -> Iterator[LevelTurn]:
        """Yield all turns in order."""
        done: Counter[int] = Counter()
        for sitting, levels in enumerate(self.sittings()):
            for level in levels:
                yield LevelTurn(level, done[level], done.total(), sitting)
                done[level] += 1

    def sittings(self) -> list[list[int]]:
        """Return the clients of each turn that is measured before everything begins anew; where the engine alone is
        compared, its part of each."""
        turns, others = self.plan.turns, [level for level in self.plan.concurrency if level != self.compared_at]
        ends = [turns * part // SITTINGS for part in range(SITTINGS + 1)]
        parts = [[self.compared_at] * (end - begin) for begin, end in pairwise(ends) if end > begin]
        return [[*(level for level in others for _ in range(turns)), *parts[0]], *parts[1:]]

    def swaps_in(self, number: int) -> int:
        """Return how many versions a turn brings: all turns together have as many as are planned, evenly."""
        whole = len(self.plan.concurrency) * self.plan.turns
        before, after = (self.plan.swaps * turns // whole for turns in (number, number + 1))
        return after - before
