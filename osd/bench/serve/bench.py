"""The arms: no drafts, fixed drafts, goodput; and the engine without HTTP.

All of them live at the same time and take turns, so that what else the machine does falls on all alike. While one is
loaded the others have nothing to do. Where a process's weights lie in memory makes it some hundredths faster or slower
than another of its kind for as long as it lives. So requests without drafts go to the server of goodput, and all begins
anew several times. A line of clients takes longer to be answered than to
be measured, and arms that are far apart in time differ by what else happened: so it is answered only where times to
the first token are told, and an arm that is hopeless soon rests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import facts_of
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all, shifted
from osd.bench.harness.watch import Watch
from osd.bench.plans import ServePlan
from osd.bench.serve.client import Address
from osd.bench.serve.load import RAMP_SECONDS, Load, closed_load, open_load
from osd.bench.serve.process import server, settings_in, swapping
from osd.bench.serve.requests import ArrivalTrace, ServeJob, jobs_of, prompts_that_fit, read_trace, shuffled_jobs
from osd.bench.serve.result import MAIN, LevelTurn, Schedule, ServeTurn, hopeless, level_rows, whole_line
from osd.engine.engine import Engine
from osd.engine.session import in_folder, serving
from osd.models.pair import Pair, row_limit
from osd.server.start import choose_pair, leave_a_core
from storage.records import Request
from storage.settings import Settings
from storage.store import open_store

SERVERS: dict[str, dict[str, Any]] = {"fixed": {"rule": "fixed"}, MAIN: {"rule": "goodput"}}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {"off": (MAIN, {"gamma": 0}), "fixed": ("fixed", {}), MAIN: (MAIN, {})}
"""Which server each asks, and what its requests say beside."""
ALONE = "alone"
"""The engine without a server takes turns as an arm of one level."""
WARM_SECONDS = 6.0
SHARE = 0.8
"""Share of what the slowest arm can do that a trace's arrivals ask for."""
UNDER_WAY = 128
LOG = "turns.jsonl"


def alone_load(engine: Engine, jobs: Iterator[ServeJob], rows: int, seconds: float) -> Load:
    """Decode ``rows`` requests at a time without a server, in this process, until the time is over, a ramp before it;
    those that run then are finished, and not counted."""
    load, under_way, begun = Load(seconds=seconds), 0, time.perf_counter() + RAMP_SECONDS
    while (now := time.perf_counter() - begun) < seconds or under_way:
        while now < seconds and under_way < min(rows, engine.settings.serve.max_batch):
            job = next(jobs)
            engine.submit(Request(job.prompt, max_new_tokens=job.tokens, ignore_eos=True))
            under_way += 1
        steps = engine.step()
        under_way -= sum(step.completion is not None for step in steps)
        if 0 <= time.perf_counter() - begun < seconds:
            load.tokens += sum(len(step.tokens) for step in steps)
    return load


class Sitting:
    """Everything that is up while some turns are measured: two servers, and an engine of its own. Close it."""

    def __init__(self, pair: Pair, settings: Settings, jobs: Sequence[ServeJob]) -> None:
        """Start it and warm it up: what is compiled, cached and learned of costs is no part of what is measured.
        Raises StoreError when a server does not start."""
        self.made: list[str] = []
        """Versions that were made current."""
        self.named: set[str] = set()
        """Those of them that an answer named."""
        self.draft = Path(in_folder(pair.draft).name)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="osd-bench-serve-")))
            own = {name: settings_in(folder / name, settings, pair, gamma) for name, gamma in SERVERS.items()}
            servers = {name: stack.enter_context(server(own[name], folder / name)) for name in SERVERS}
            self.arms: dict[str, Address] = {arm: servers[name].asked(says) for arm, (name, says) in ARMS.items()}
            self.store = stack.enter_context(open_store(own[MAIN]))
            alone = settings_in(folder / ALONE, settings, pair, SERVERS[MAIN])
            self.engine = stack.enter_context(serving(pair, alone, stack.enter_context(open_store(alone))))
            rows = settings.serve.max_batch
            for address in self.arms.values():
                closed_load(address, jobs_of(jobs, 0), rows, WARM_SECONDS)
            alone_load(self.engine, jobs_of(jobs, 0), rows, WARM_SECONDS)
            self.close = stack.pop_all().close


class ServeBench:
    """Measures turns, each in its sitting."""

    def __init__(
        self, pair: Pair, settings: Settings, jobs: Sequence[ServeJob], schedule: Schedule,
        done: Sequence[ServeTurn], watch: Watch,
    ) -> None:  # fmt: skip
        """``done``: the turns that are over, which others add."""
        self._pair, self._settings, self._jobs, self._watch = pair, settings, jobs, watch
        self._schedule, self._plan, self._done = schedule, schedule.plan, done
        self._sitting: Sitting | None = None
        self._number = -1

    def close(self) -> None:
        """End what is up."""
        if self._sitting:
            self._sitting.close()
        self._sitting = None

    def measure(self, job: LevelTurn) -> ServeTurn:
        """Load every arm that takes part."""
        sitting, made = self._sit(job.sitting), self._schedule.swaps_in(job.number)
        before = len(sitting.made)
        arms = [arm for arm in ARMS if not hopeless(loads_of(self._done, job.clients), arm)]
        arms += [ALONE] if job.clients == self._schedule.compared_at else []
        loads = {arm: self._load(sitting, arm, job, made) for arm in shifted(arms, job.turn)}
        new = set(loads[MAIN].versions).intersection(sitting.made) - sitting.named
        sitting.named |= new
        return ServeTurn(job, loads, len(sitting.made) - before, len(new))

    def play(self, trace: ArrivalTrace) -> dict[str, Any]:
        """Load every arm with the same arrivals; return tokens a second and latencies. What each can do is measured
        first."""
        arms, seconds = self._sit(max(self._number, 0)).arms, self._plan.seconds
        self._watch.at(f"{trace.name}: what the servers can do")
        clients = 2 * self._schedule.rows
        able = {arm: closed_load(to, iter(trace.jobs), clients, seconds).requests_per_s for arm, to in arms.items()}
        per_second, lines = SHARE * min(able.values()), {}
        for arm, address in arms.items():
            self._watch.at(f"{trace.name}: {arm}")
            load = open_load(address, trace.arrivals(per_second, seconds), UNDER_WAY, seconds)
            counts = {"tokens_per_s": load.rate, "requests": load.requests, "failed": len(load.errors)}
            lines[arm] = {**counts, **load.percentiles()}
        return {"requests_per_s": per_second, "able_per_s": able, **lines}

    def _sit(self, number: int) -> Sitting:
        if self._sitting is None or number != self._number:
            self.close()
            self._watch.at("starting servers")
            self._sitting, self._number = Sitting(self._pair, self._settings, self._jobs), number
        return self._sitting

    def _load(self, sitting: Sitting, arm: str, job: LevelTurn, swaps: int) -> Load:
        jobs, seconds, beside = jobs_of(self._jobs, job.number), self._plan.seconds / self._plan.turns, None
        if arm == ALONE:
            return alone_load(sitting.engine, jobs, job.clients, seconds)
        if arm == MAIN:
            beside = swapping(sitting.store, sitting.draft, swaps, seconds, sitting.made)
        return closed_load(sitting.arms[arm], jobs, job.clients, seconds, beside, wait=arm == MAIN)


def loads_of(turns: Sequence[ServeTurn], clients: int) -> dict[str, list[Load]]:
    """Return the turns of each arm with so many clients."""
    mine = [turn.loads for turn in turns if turn.job.clients == clients]
    return {arm: [loads[arm] for loads in mine if arm in loads] for arm in (*ARMS, ALONE)}


def bench_serve(plan: ServePlan, settings: Settings, watch: Watch) -> BenchResult:
    """Measure what the folder of the run does not hold yet.

    Raises StoreError when a server does not start, BadSetting for the folder of another run, StoreWriteFailed, and what
    reading raises.
    """
    settings = settings.changed(serve={"threads": plan.threads}) if plan.threads else settings
    settings = leave_a_core(settings)
    pair = choose_pair(settings.serve, plan.target, plan.draft).load(settings.serve)
    schedule = Schedule(plan, settings.serve.max_batch)
    texts = prompts_that_fit(plan, pair, settings.serve)
    played = _traces(pair, settings, texts, plan.trace, plan.max_tokens)
    facts = facts_of(
        plan, target=pair.target.name, draft=pair.draft.name, prompts=len(texts), rows=schedule.rows,
        trace=[trace.name for trace in played], threads=torch.get_num_threads(),
    )  # fmt: skip
    with ExitStack() as stack:
        folder = RunFolder(plan.out or Path(stack.enter_context(TemporaryDirectory())), facts, LOG, ServeTurn)
        bench = ServeBench(pair, settings, shuffled_jobs(texts, plan.max_tokens), schedule, folder.finished, watch)
        stack.callback(bench.close)
        turns = measure_all(schedule.jobs(), bench.measure, watch, folder=folder)
        figures = figures_of(turns, schedule)
        with watch.until_ctrl_c():
            if played and not watch.stopped:
                figures["traces"] = {trace.name: bench.play(trace) for trace in played}
    rows = level_rows(figures)
    return BenchResult("serve", facts, figures, {"Tokens a second, ms": rows}, interrupted=watch.stopped)


def figures_of(turns: Sequence[ServeTurn], schedule: Schedule) -> dict[str, Any]:
    """Return the last line's figures."""
    found, at = {level: loads_of(turns, level) for level in schedule.plan.concurrency}, schedule.compared_at
    alone = {level: loads.pop(ALONE) for level, loads in found.items()}[at]
    swaps = {"published": sum(turn.published for turn in turns), "served": sum(turn.served for turn in turns)}
    return {**whole_line(found, alone, at), "swaps": swaps}


def _traces(
    pair: Pair, settings: Settings, texts: Sequence[Tokens], paths: Sequence[Path], longest: int
) -> list[ArrivalTrace]:
    together = [token for text in texts for token in text]
    return [read_trace(path, together, row_limit(pair, settings.serve), longest) for path in paths]
