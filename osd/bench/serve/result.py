"""Which turns a load bench has, and what it ends with: by clients what each arm did, and arms compared there and back.

Arms of one turn have the same prompts and stand next to each other in time, so a machine that is slower for a minute is
so for all of them: their ratio in the median of the turns, and not the ratio of their totals, is what is told. Every
other turn goes backwards, and two are told as one: what coming after a rest costs falls on both arms of a ratio alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from osd.bench.harness.turns import Ratio, ratio_of_turns
from osd.bench.plans import ServePlan
from osd.bench.serve.load import Load, together

SITTINGS = 4
"""Parts in which the turns are measured; all begins anew with each."""

MAIN = "goodput"
"""The arm whose latencies are shown, and that the others and the engine alone are compared with."""
TRIED = 6
"""Turns of every arm; then a hopeless one rests."""
HOPELESS = 0.8
"""Share of the best arm's tokens a second below which an arm rests."""


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
        """Yield all turns in order: every number of clients, then all of them again."""
        places = product(range(self.plan.turns), self.plan.concurrency)
        for number, (turn, clients) in enumerate(places):
            yield LevelTurn(clients, turn, number, turn * SITTINGS // self.plan.turns)

    def swaps_in(self, number: int) -> int:
        """Return how many versions a turn brings: all turns together have as many as are planned, evenly."""
        whole = len(self.plan.concurrency) * self.plan.turns
        before, after = (self.plan.swaps * turns // whole for turns in (number, number + 1))
        return after - before


def ratio(one: Sequence[Load], other: Sequence[Load]) -> Ratio:
    """Compare turns, there and back, in which both got something done. Who rests has had the first ones."""
    return ratio_of_turns(*([load.rate for load in there_and_back(turns)] for turns in (one, other)))


def hopeless(arms: Mapping[str, Sequence[Load]], arm: str) -> bool:
    """Whether an arm was so far behind in the turns that each has had that more of them would tell nothing."""
    rates = {name: together(turns[:TRIED]).rate for name, turns in arms.items()}
    return arm != MAIN and len(arms[arm]) >= TRIED and rates[arm] < HOPELESS * max(rates.values())


def there_and_back(turns: Sequence[Load]) -> list[Load]:
    """Each turn with the one after it, which went backwards; one that is left over by itself."""
    return [together(turns[first : first + 2]) for first in range(0, len(turns), 2)]


def level_line(arms: Mapping[str, Sequence[Load]]) -> dict[str, Any]:
    """One number of clients: tokens a second of each arm, the main one ÷ the better of the others, its latencies."""
    wholes = {arm: together(turns) for arm, turns in arms.items()}
    compared = [ratio(arms[MAIN], turns) for arm, turns in arms.items() if arm != MAIN]
    least = min(compared, key=lambda found: math.inf if found.value is None else found.value)
    return {
        **{arm: whole.rate for arm, whole in wholes.items()},
        "goodput_over_best": least.value, "goodput_over_best_error": least.error,
        **wholes[MAIN].percentiles(), "failed": sum(len(whole.errors) for whole in wholes.values()),
    }  # fmt: skip


def whole_line(found: Mapping[int, Mapping[str, Sequence[Load]]], alone: Sequence[Load], at: int) -> dict[str, Any]:
    """The whole bench: turns of every arm by clients, and of the engine alone beside those of ``at`` clients."""
    lines = {str(level): level_line(arms) for level, arms in found.items()}
    over_offline = ratio(found[at][MAIN], alone)
    errors = [error for arms in found.values() for turns in arms.values() for turn in turns for error in turn.errors]
    ratios = [line["goodput_over_best"] for line in lines.values() if line["goodput_over_best"] is not None]
    tails = [line["tpot_ms_p99"] / line["tpot_ms_p50"] for line in lines.values() if line["tpot_ms_p50"]]
    return {
        "by_concurrency": lines,
        "offline_tokens_per_s": together(alone).rate,
        "server_over_offline": over_offline.value,
        "server_over_offline_error": over_offline.error,
        "compared_at": at,
        "goodput_over_best_min": min(ratios, default=None),
        "tpot_p99_over_median_max": max(tails, default=None),
        "failed": len(errors),
        "errors": sorted(set(errors))[:5],
    }


SHOWN = (
    "off", "fixed", "goodput", "ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p95", "tpot_ms_p99", "gap_ms_p99",
    "failed",
)  # fmt: skip


def level_rows(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a line of the table for each number of clients."""
    return [
        {"clients": int(level)} | {name: line[name] for name in SHOWN}
        for level, line in figures["by_concurrency"].items()
    ]
