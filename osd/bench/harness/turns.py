"""Arms take turns over the same prompts, so that whatever else the machine does falls on all alike.

A machine changes its speed from minute to minute by more than arms differ. Arms of one turn stand next to each other in
time, so their ratio in the median of the turns is told, not the ratio of their totals.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from osd.bench.harness.folder import RunFolder
from osd.bench.harness.watch import Watch

Arm = TypeVar("Arm")
Place = TypeVar("Place")
Found = TypeVar("Found")
Measured = TypeVar("Measured", bound=Any)


@dataclass(frozen=True, slots=True)
class Job(Generic[Place, Arm]):
    """One arm in one place: a setting, a data set, a table of costs."""

    place: Place
    arm: Arm

    def __str__(self) -> str:
        return f"{self.place}: {self.arm}"


Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class Cell(Generic[Asked, Found]):
    """A job, and what came of it."""

    job: Asked
    found: Found


def shifted(arms: Sequence[Arm], turn: int) -> list[Arm]:
    """Return the arms of a turn in their order: A B C, C B A, B C A, A C B, … The first one after a rest is slower for
    seconds, and that must not always be the same."""
    begin = turn // 2 % max(1, len(arms))
    return [*arms[begin:], *arms[:begin]][:: -1 if turn % 2 else 1]


class Turn(NamedTuple):
    """An arm's turn, with so many clients where that differs."""

    turn: int
    arm: str
    clients: int = 0

    def __str__(self) -> str:
        return f"{self.arm}, {f'{self.clients} at a time, ' if self.clients else ''}turn {self.turn + 1}"


def turns_of(arms: Sequence[str], turns: int, clients: int = 0) -> list[Turn]:
    """Return so many turns of all arms."""
    return [Turn(turn, arm, clients) for turn in range(turns) for arm in shifted(arms, turn)]


def measure_all(
    jobs: Iterable[Asked],
    measure: Callable[[Asked], Measured],
    watch: Watch,
    *,
    folder: RunFolder[Measured] | None = None,
    work: Callable[[Asked], float] = lambda _: 1.0,
) -> list[Measured]:
    """Measure every job that the folder does not hold yet, in order, and keep each as soon as it is done.

    What a folder holds names its ``job``, as a :class:`Cell` does. ``work`` tells how long a job takes beside others.
    Ctrl-C ends the run after what was kept: the list that is returned is shorter then, and ``watch.stopped`` is set.
    """
    jobs = list(jobs)
    done = {each.job: each for each in folder.finished} if folder else {}
    left = [job for job in jobs if job not in done]
    watch.begin(sum(map(work, left)))
    with watch.until_ctrl_c():
        for job in left:
            watch.at(str(job))
            with watch.job(work(job)):
                done[job] = measure(job)
            if folder:
                folder.add(done[job])
    return [done[job] for job in jobs if job in done]


class Ratio(NamedTuple):
    """One arm ÷ another, in the median of their turns; None where there is no turn to compare."""

    value: float | None
    error: float | None
    """Standard error of the median."""


def ratio_of_turns(one: Sequence[float], *others: Sequence[float]) -> Ratio:
    """Compare an arm's rates with the best of the others' in the same turn; turns that one lacks are left out."""
    turns = zip(one, *others, strict=False)
    values = [own / max(rest) for own, *rest in turns if max(rest) > 0]
    return Ratio(statistics.median(values), median_error(values)) if values else Ratio(None, None)


def median_error(values: Sequence[float]) -> float:
    """Return the standard error of the median, by what lies √n/2 places beside it: a few wild turns do not move it."""
    ordered, n = sorted(values), len(values)
    low, high = math.floor((n - math.sqrt(n)) / 2), math.ceil((n + math.sqrt(n)) / 2) - 1
    return (ordered[min(n - 1, high)] - ordered[max(0, low)]) / 2
