"""The arms: a server that does not speculate, one with fixed drafts, one with goodput; and the engine without HTTP.

All of them live at the same time and take turns, so that what else the machine does falls on all alike. While one is
loaded the others have nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from osd.bench.serve.alone import alone_load
from osd.bench.serve.client import Job
from osd.bench.serve.load import Load, closed_load
from osd.bench.serve.process import Server, server, settings_in
from osd.bench.serve.result import MAIN, whole_line
from osd.bench.serve.swaps import Swaps, swaps_of
from osd.bench.serve.trace import Trace, trace_line
from osd.bench.serve.turns import jobs_of, shuffled_jobs, turned
from osd.engine import Engine
from osd.models import Pair
from osd.serving import in_folder, serving
from storage.settings import Settings
from storage.store import open_store

ARMS: dict[str, dict[str, Any]] = {
    "off": {"gamma": "fixed", "gamma_initial": 0}, "fixed": {"gamma": "fixed"}, "goodput": {"gamma": "goodput"},
}  # fmt: skip
SWAPPING = ("fixed", MAIN)
WARM_SECONDS = 4.0
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured."""

    levels: Sequence[int]
    """Clients at a time."""
    seconds: float
    """Of each arm at each level."""
    turns: int
    """Into so many parts they are divided."""
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
    jobs: Sequence[Job]
    plan: Plan
    report: Report
    found: dict[int, dict[str, list[Load]]] = field(default_factory=dict)
    """By clients and arm, turn after turn."""
    alone: list[Load] = field(default_factory=list)
    turns: int = 0
    """Over."""

    @property
    def compared_at(self) -> int:
        """Clients at which the server is compared with the engine alone: the level that is nearest a full batch."""
        return min(self.plan.levels, key=lambda level: abs(level - self.engine.settings.max_batch))

    def measure(self) -> None:
        """Every level, arm after arm, several times."""
        for level in self.plan.levels:
            self.found[level] = {arm: [] for arm in ARMS}
            for turn in range(self.plan.turns):
                self.report(f"{level} at a time, turn {turn + 1} of {self.plan.turns}")
                for arm in turned(list(ARMS), turn):
                    self._turn(arm, level)
                self.turns += 1

    def _turn(self, arm: str, level: int) -> None:
        seconds, turns = self.plan.seconds / self.plan.turns, len(self.plan.levels) * self.plan.turns
        due = self.plan.swaps * (self.turns + 1) // turns
        beside = self.swaps[arm].beside(due, seconds) if arm in self.swaps else None
        load = closed_load(self.servers[arm].address, jobs_of(self.jobs, self.turns), level, seconds, beside)
        self.found[level][arm].append(load)
        if arm == MAIN and level == self.compared_at:
            self.alone.append(alone_load(self.engine, jobs_of(self.jobs, self.turns), level, seconds))

    def warm_up(self) -> None:
        """What is compiled, cached and learned of costs is no part of what is measured."""
        self.report("warming up")
        rows = self.engine.settings.max_batch
        for arm in ARMS:
            closed_load(self.servers[arm].address, jobs_of(self.jobs, self.turns), rows, WARM_SECONDS)
        alone_load(self.engine, jobs_of(self.jobs, self.turns), rows, WARM_SECONDS)


def bench_serve(
    pair: Pair, prompts: Sequence[Sequence[int]], settings: Settings, plan: Plan, report: Report
) -> dict[str, Any]:
    """Measure. Raises StoreError when a server does not start."""
    jobs = shuffled_jobs(prompts, plan.max_tokens)
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
    made = set(bench.swaps[MAIN].made)
    named = {reply.version for arms in bench.found.values() for turn in arms[MAIN] for reply in turn.replies}
    return {
        **whole_line(bench.found, bench.alone, bench.compared_at),
        "swaps": {"published": len(made), "served": len(made & named)},
        "seconds": bench.plan.seconds, "turns": bench.plan.turns, "max_tokens": bench.plan.max_tokens,
    }  # fmt: skip
