"""The arms: a server that does not speculate, one with fixed drafts, one with goodput; and the engine without HTTP.

All of them live at the same time and take turns, so that what else the machine does falls on all alike. While one is
loaded the others have nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from osd.bench.serve.alone import alone_load
from osd.bench.serve.client import Job
from osd.bench.serve.load import Load, closed_load
from osd.bench.serve.process import Server, server, settings_in
from osd.bench.serve.swaps import Swaps, swaps_of
from osd.bench.serve.trace import Trace, trace_line
from osd.engine import Engine
from osd.models import Pair
from osd.serving import in_folder, serving
from storage.settings import Settings
from storage.store import open_store

ARMS: dict[str, dict[str, Any]] = {
    "off": {"gamma": "fixed", "gamma_initial": 0}, "fixed": {"gamma": "fixed"}, "goodput": {"gamma": "goodput"},
}  # fmt: skip
MAIN = "goodput"
"""The arm whose latencies are shown, and that is compared with the engine alone."""
SWAPPING = ("fixed", MAIN)
TURNS = 3
"""Into so many parts the seconds of an arm are divided."""
WARM_SECONDS = 2.0
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured."""

    levels: Sequence[int]
    """Clients at a time."""
    seconds: float
    """Of each arm at each level."""
    swaps: int
    """New versions in each arm that drafts, over all levels."""
    max_tokens: int
    traces: Sequence[Trace] = ()


@dataclass(slots=True)
class Bench:
    """Everything that is up while it is measured."""

    servers: Mapping[str, Server]
    engine: Engine
    swaps: Mapping[str, Swaps]
    jobs: Iterator[Job]
    plan: Plan
    report: Report
    found: dict[str, dict[int, Load]] = field(default_factory=lambda: {arm: {} for arm in ARMS})
    alone: Load = field(default_factory=Load)
    turns: int = 0

    @property
    def compared_at(self) -> int:
        """Clients at which the server is compared with the engine alone: the level that is nearest a full batch."""
        return min(self.plan.levels, key=lambda level: abs(level - self.engine.settings.max_batch))

    def measure(self) -> None:
        """Every level, arm after arm, several times."""
        for level in self.plan.levels:
            for turn in range(TURNS):
                self.report(f"{level} at a time, turn {turn + 1} of {TURNS}")
                for arm in turned(list(ARMS), turn):
                    self._turn(arm, level)
                self.turns += 1

    def _turn(self, arm: str, level: int) -> None:
        seconds = self.plan.seconds / TURNS
        due = self.plan.swaps * (self.turns + 1) // (len(self.plan.levels) * TURNS)
        beside = self.swaps[arm].beside(due, seconds) if arm in self.swaps else None
        load = closed_load(self.servers[arm].address, self.jobs, level, seconds, beside)
        self.found[arm].setdefault(level, Load()).add(load)
        if arm == MAIN and level == self.compared_at:
            self.alone.add(alone_load(self.engine, self.jobs, level, seconds))

    def warm_up(self) -> None:
        """What is compiled, cached and learned of costs is no part of what is measured."""
        self.report("warming up")
        rows = self.engine.settings.max_batch
        for arm in ARMS:
            closed_load(self.servers[arm].address, self.jobs, rows, WARM_SECONDS)
        alone_load(self.engine, self.jobs, rows, WARM_SECONDS)


def turned(names: Sequence[str], turn: int) -> list[str]:
    """The same, beginning with another one every turn."""
    return [*names[turn % len(names) :], *names[: turn % len(names)]]


def bench_serve(
    pair: Pair, prompts: Sequence[Sequence[int]], settings: Settings, plan: Plan, report: Report
) -> dict[str, Any]:
    """Measure. Raises StoreError when a server does not start."""
    jobs = cycle([Job(tuple(prompt), plan.max_tokens) for prompt in prompts])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="osd-bench-serve-")))
        report("starting servers")
        servers = {
            arm: stack.enter_context(server(settings_in(folder / arm, settings, pair, serve), folder / arm))
            for arm, serve in ARMS.items()
        }
        draft = Path(in_folder(pair.draft).name)
        swaps = {arm: stack.enter_context(swaps_of(servers[arm].settings, draft, plan.swaps)) for arm in SWAPPING}
        own = settings_in(folder / "alone", settings, pair, ARMS[MAIN])
        engine = stack.enter_context(serving(pair, own, stack.enter_context(open_store(own))))
        bench = Bench(servers, engine, swaps, jobs, plan, report)
        bench.warm_up()
        bench.measure()
        traces = {trace.name: trace_line(bench.servers, trace, plan, report) for trace in plan.traces}
    return result(bench) | ({"traces": traces} if traces else {})


def result(bench: Bench) -> dict[str, Any]:
    """The line that the command ends with."""
    lines = {str(level): _line(bench.found, level) for level in bench.plan.levels}
    served = bench.found[MAIN][bench.compared_at].rate
    errors = [error for loads in bench.found.values() for load in loads.values() for error in load.errors]
    tails = [line["tpot_ms_p99"] / line["tpot_ms_p50"] for line in lines.values() if line["tpot_ms_p50"]]
    return {
        "by_concurrency": lines,
        "offline_tokens_per_s": bench.alone.rate,
        "server_over_offline": served / bench.alone.rate if bench.alone.rate else None,
        "compared_at": bench.compared_at,
        "goodput_over_best_min": min((line["goodput_over_best"] for line in lines.values()), default=None),
        "tpot_p99_over_median_max": max(tails, default=None),
        "failed": len(errors),
        "errors": sorted(set(errors))[:5],
        "swaps": _swaps(bench),
        "seconds": bench.plan.seconds,
        "turns": TURNS,
    }


def _line(found: Mapping[str, Mapping[int, Load]], level: int) -> dict[str, Any]:
    rates = {arm: loads[level].rate for arm, loads in found.items()}
    failed = sum(loads[level].failed for loads in found.values())
    best = max(rates["off"], rates["fixed"])
    ratio = {"goodput_over_best": rates[MAIN] / best if best else None}
    return {**rates, **ratio, **found[MAIN][level].percentiles(), "failed": failed}


def _swaps(bench: Bench) -> dict[str, int]:
    """Versions that the main arm was given, and those of them that its answers name."""
    made = set(bench.swaps[MAIN].made)
    named = {reply.version for load in bench.found[MAIN].values() for reply in load.replies}
    return {"published": len(made), "served": len(made & named)}
