"""A server under most of the load that it can take, with a worker beside it that trains on what is served."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from osd.bench.serve.bench import SERVERS
from osd.bench.serve.client import ServeJob
from osd.bench.serve.load import Load, TimedJob, closed_load, open_load
from osd.bench.serve.process import Server, server, settings_in
from osd.bench.serve.result import MAIN
from osd.bench.serve.trace import ArrivalTrace
from osd.bench.soak.picture import draw
from osd.bench.soak.watch import Watcher, growth
from osd.demo.runner.process import worker_beside
from osd.models.pair import Pair
from storage.errors import StoreError
from storage.records import RunState
from storage.settings import Settings
from storage.store import open_store

SHARE = 0.8
"""Share of what the server can do that is asked for."""
UNDER_WAY = 64
RUNS = 100_000
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """How long, and with what."""

    minutes: float
    every: float
    """Seconds between two looks at the processes."""
    measuring: float
    """Seconds in which it is found out what the server can do."""
    jobs: Sequence[ServeJob]
    trace: ArrivalTrace | None = None
    """Whose rhythm the requests have, and whose lengths; without one they come at random (Poisson)."""


@dataclass(slots=True)
class Soaked:
    """What came of it, up to now."""

    load: Load = field(default_factory=lambda: Load(slim=True))
    able: float = 0.0
    """Requests a second."""
    interrupted: bool = False


def bench_soak(pair: Pair, settings: Settings, plan: SoakPlan, out: Path, report: Report) -> dict[str, Any]:
    """Run it; Ctrl-C ends it early, with what there is. Raises StoreError and TrainingFailed when a process does not
    start or a worker is gone at the end."""
    out.mkdir(parents=True, exist_ok=True)
    soaked = Soaked()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="osd-bench-soak-")))
        own = settings_in(folder, settings, pair, SERVERS[MAIN])
        report("starting the server and a worker")
        served = stack.enter_context(server(own, folder))
        worker = stack.enter_context(worker_beside(served.config, out / "worker.log"))
        watcher = Watcher({"server": served.process.pid, "worker": worker.pid}, plan.every)
        stack.callback(watcher.stop)
        try:
            _load(served, plan, soaked, report)
        except KeyboardInterrupt:
            soaked.interrupted = True
        watcher.stop()
        if not soaked.interrupted:
            worker.require_alive()
        learned = _learned(own)
    picture = out / "soak.png"
    draw(watcher.curves).savefig(picture, dpi=120)
    return _result(soaked, growth(watcher.curves), plan) | learned | {"picture": str(picture)}


def _load(served: Server, plan: SoakPlan, soaked: Soaked, report: Report) -> None:
    jobs = plan.trace.jobs if plan.trace else plan.jobs
    report("measuring what the server can do")
    able = closed_load(served.address, cycle(jobs), 2 * served.settings.serve.max_batch, plan.measuring)
    if not able.replies:
        raise StoreError(reason=f"The server answered nothing: {able.errors[0]}")
    begun, ended = min(reply.begun for reply in able.replies), max(reply.times[-1] for reply in able.replies)
    soaked.able = len(able.replies) / (ended - begun)
    report(f"{soaked.able:.2f} requests a second; {SHARE:.0%} of that for {plan.minutes:g} minutes")
    open_load(served.address, _arrivals(plan, SHARE * soaked.able), UNDER_WAY, 60 * plan.minutes, soaked.load)


def _arrivals(plan: SoakPlan, per_second: float) -> Iterator[TimedJob]:
    seconds = 60 * plan.minutes
    if plan.trace:
        yield from plan.trace.arrivals(per_second, seconds)
        return
    chance, at = random.Random(0), 0.0
    for job in cycle(plan.jobs):
        at += chance.expovariate(per_second)
        if at > seconds:
            return
        yield TimedJob(at, job)


def _learned(settings: Settings) -> dict[str, int]:
    with open_store(settings) as store:
        states = [run.state for run in store.runs.list(limit=RUNS)]
    return {"published": states.count(RunState.PUBLISHED), "rejected": states.count(RunState.REJECTED)}


def _result(soaked: Soaked, found: dict[str, dict[str, Any]], plan: SoakPlan) -> dict[str, Any]:
    load = soaked.load
    return {
        "minutes": plan.minutes, "interrupted": soaked.interrupted, "requests": len(load.replies) + load.failed,
        "failed": load.failed, "errors": sorted(set(load.errors))[:5], "able_per_s": soaked.able,
        "offered_per_s": SHARE * soaked.able, "late": load.late, "processes": found,
        "growth_max": max((one["growth"] for one in found.values()), default=None),
        "versions_served": len({reply.version for reply in load.replies if reply.version}),
        **{name: value for name, value in load.percentiles().items() if name.startswith(("ttft", "tpot"))},
    }  # fmt: skip
