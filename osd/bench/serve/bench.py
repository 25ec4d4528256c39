"""The arms: no drafts, fixed drafts, goodput; and the engine without HTTP.

All of them live at the same time and take turns, so that what else the machine does falls on all alike. While one is
loaded the others have nothing to do. Where a process's weights lie in memory makes it some hundredths faster or slower
than another of its kind for as long as it lives. So requests without drafts go to the server of goodput, and where that
is compared with the engine alone both begin anew several times. A line of clients takes longer to be answered than to
be measured, and arms that are far apart in time differ by what else happened: so it is answered only where times to
the first token are told, and an arm that is hopeless soon rests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from osd.bench.harness.folder import RunFolder
from osd.bench.harness.turns import shifted
from osd.bench.serve.alone import alone_load
from osd.bench.serve.client import Address, ServeJob
from osd.bench.serve.kept import ServeTurn, folder_of
from osd.bench.serve.load import Load, closed_load
from osd.bench.serve.plan import ServePlan
from osd.bench.serve.process import server, settings_in
from osd.bench.serve.result import MAIN, hopeless, whole_line
from osd.bench.serve.swaps import Swaps, swaps_of
from osd.bench.serve.trace import trace_line
from osd.bench.serve.turns import jobs_of, shuffled_jobs
from osd.engine.engine import Engine
from osd.engine.session import in_folder, serving
from osd.models.pair import Pair
from storage.settings import Settings
from storage.store import open_store

SERVERS: dict[str, dict[str, Any]] = {"fixed": {"rule": "fixed"}, MAIN: {"rule": "goodput"}}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {"off": (MAIN, {"gamma": 0}), "fixed": ("fixed", {}), MAIN: (MAIN, {})}
"""Which server each asks, and what its requests say beside."""
ALONE = "alone"
"""The engine without a server takes turns as an arm of one level."""
WARM_SECONDS = 6.0
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sitting:
    """Everything that is up while some turns are measured."""

    arms: Mapping[str, Address]
    engine: Engine
    swaps: Swaps

    def warm_up(self, jobs: Sequence[ServeJob]) -> None:
        """What is compiled, cached and learned of costs is no part of what is measured."""
        rows = self.engine.settings.serve.max_batch
        for address in self.arms.values():
            closed_load(address, jobs_of(jobs, 0), rows, WARM_SECONDS)
        alone_load(self.engine, jobs_of(jobs, 0), rows, WARM_SECONDS)


@dataclass(slots=True)
class Bench:
    """What is measured, and what was found."""

    jobs: Sequence[ServeJob]
    plan: ServePlan
    rows: int
    """Rows of a full batch."""
    report: Report
    folder: RunFolder[ServeTurn] | None = None
    """Keeps turns that are over."""
    found: dict[int, dict[str, list[Load]]] = field(init=False)
    """By clients and arm, turn after turn."""
    alone: list[Load] = field(default_factory=list)
    published: int = 0
    """Versions that were made current in the turns that are over."""
    served: int = 0
    """Those of them that an answer named."""
    turns: int = 0
    """Over."""
    begun: tuple[int, float] = field(init=False)
    """Turns that were over when this sitting began, and when that was."""

    def __post_init__(self) -> None:
        self.found = {level: {arm: [] for arm in ARMS} for level in self.plan.levels}
        for turn in self.folder.finished if self.folder else []:
            self._take(turn)

    @property
    def compared_at(self) -> int:
        """Clients at which the server is compared with the engine alone: the level that is nearest a full batch."""
        return min(self.plan.levels, key=lambda level: abs(level - self.rows))

    def due(self, turns: int) -> int:
        """Versions that are to be current by then."""
        return self.plan.swaps * turns // (len(self.plan.levels) * self.plan.turns)

    def sittings(self) -> list[list[tuple[int, int]]]:
        """(clients, turns) of the sittings that are left."""
        done, left = {level: len(arms[MAIN]) for level, arms in self.found.items()}, []
        for parts in self.plan.sittings(self.compared_at):
            rest = []
            for level, turns in parts:
                over = min(done[level], turns)
                done[level] -= over
                rest += [(level, turns - over)] if turns > over else []
            left += [rest] if rest else []
        return left

    def measure(self, sitting: Sitting, parts: Sequence[tuple[int, int]]) -> None:
        """So many turns of each level: arm after arm. Which versions served is counted by sittings: the next one's are
        called the same."""
        published, served, made, named = self.published, self.served, sitting.swaps.made, set[str | None]()
        self.begun = self.turns, time.monotonic()
        for level, turns in parts:
            for _ in range(turns):
                loads = self._measure(sitting, level)
                named |= {reply.version for reply in loads[MAIN].replies}
                turn = ServeTurn(level, loads, published + len(made), served + len(named.intersection(made)))
                self._take(turn)
                if self.folder:
                    self.folder.add(turn)

    def _take(self, turn: ServeTurn) -> None:
        for arm, load in turn.loads.items():
            (self.alone if arm == ALONE else self.found[turn.level][arm]).append(load)
        self.turns, self.published, self.served = self.turns + 1, turn.published, turn.served

    def _measure(self, sitting: Sitting, level: int) -> dict[str, Load]:
        turn = len(self.found[level][MAIN])
        self.report(f"{self._progress()}{level} at a time, turn {turn + 1} of {self.plan.turns}")
        return {arm: self._load(sitting, arm, level) for arm in shifted(self._taking_part(level), turn)}

    def _progress(self) -> str:
        """How much is over, and minutes that the rest takes."""
        before, begun = self.begun
        over, whole = self.turns - before, len(self.plan.levels) * self.plan.turns
        left = f", about {(whole - self.turns) * (time.monotonic() - begun) / over / 60:.0f} min left" if over else ""
        return f"{self.turns / whole:.0%}{left}: "

    def _taking_part(self, level: int) -> list[str]:
        arms = [arm for arm in ARMS if not hopeless(self.found[level], arm)]
        return [*arms, ALONE] if level == self.compared_at else arms

    def _load(self, sitting: Sitting, arm: str, level: int) -> Load:
        jobs, seconds, beside = jobs_of(self.jobs, self.turns), self.plan.seconds / self.plan.turns, None
        if arm == ALONE:
            return alone_load(sitting.engine, jobs, level, seconds)
        if arm == MAIN:
            before = self.published - len(sitting.swaps.made)  # in other sittings
            beside = sitting.swaps.beside(self.due(self.turns + 1) - before, seconds)
        return closed_load(sitting.arms[arm], jobs, level, seconds, beside, wait=arm == MAIN)


def bench_serve(
    pair: Pair, prompts: Sequence[Sequence[int]], settings: Settings, plan: ServePlan, report: Report,
    out: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure what the folder ``out`` does not hold yet. Ctrl-C ends it with what was measured. Raises StoreError when
    a server does not start, BadSetting for the folder of another run, StoreWriteFailed."""
    about = {"target": pair.target.name, "draft": pair.draft.name, "prompts": len(prompts)}
    folder = folder_of(out, plan, about) if out else None
    bench = Bench(shuffled_jobs(prompts, plan.max_tokens), plan, settings.serve.max_batch, report, folder)
    traces: dict[str, Any] = {}
    try:
        for parts in bench.sittings():
            with _sitting(pair, settings, bench, sum(turns for _, turns in parts)) as sitting:
                report("warming up")
                sitting.warm_up(bench.jobs)
                bench.measure(sitting, parts)
                if not traces:
                    traces = {
                        one.name: trace_line(sitting.arms, bench.rows, one, plan.seconds, report) for one in plan.traces
                    }
    except KeyboardInterrupt:
        return result(bench) | {"interrupted": True}
    return result(bench) | ({"traces": traces} if traces else {})


@contextmanager
def _sitting(pair: Pair, settings: Settings, bench: Bench, turns: int) -> Iterator[Sitting]:
    """For so many turns."""
    bench.report("starting servers")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="osd-bench-serve-")))
        servers = {
            name: stack.enter_context(server(settings_in(folder / name, settings, pair, gamma), folder / name))
            for name, gamma in SERVERS.items()
        }
        draft = Path(in_folder(pair.draft).name)
        count = bench.due(bench.turns + turns) - bench.published
        swaps = stack.enter_context(swaps_of(servers[MAIN].settings, draft, count))
        own = settings_in(folder / "alone", settings, pair, SERVERS[MAIN])
        engine = stack.enter_context(serving(pair, own, stack.enter_context(open_store(own))))
        arms = {arm: servers[name].asked(says) for arm, (name, says) in ARMS.items()}
        yield Sitting(arms, engine, swaps)


def result(bench: Bench) -> dict[str, Any]:
    """The line that the command ends with."""
    return {
        **whole_line(bench.found, bench.alone, bench.compared_at),
        "swaps": {"published": bench.published, "served": bench.served},
    }  # fmt: skip
