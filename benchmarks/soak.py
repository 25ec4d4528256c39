"""``python -m benchmarks soak``: a server under most of the load that it can take, for as long as is asked for, with a
worker beside it that trains on what is served, watched for what grows."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import psutil
from annotated_types import Ge

from osd.bench.harness.plan import PairPlan, SampledPlan, body_of, facts_of
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch, note
from osd.bench.serve.bench import SERVERS
from osd.bench.serve.load import Load, closed_load, open_load
from osd.bench.serve.process import server, settings_in
from osd.bench.serve.requests import ServeJob, TimedJob, prompts_that_fit, shuffled_jobs
from osd.bench.serve.result import MAIN
from osd.demo.runner.process import worker_beside
from osd.server.start import choose_pair
from storage.errors import StoreError
from storage.records import RunState
from storage.settings import Settings
from storage.store import open_store

SHARE = 0.8
"""Share of what the server can do that is asked for."""
UNDER_WAY = 64
RUNS = 100_000
SETTLING = 0.2
"""Share of the time in which caches fill and the first training is; growth is counted from then on."""
WINDOW = 0.1
"""Share of the time whose median is the state at its beginning or its end."""
MIB = 1 << 20
PANELS = {"memory": "resident memory, MiB", "files": "open files", "threads": "threads"}
"""Fields of a sample, and what their axes are called."""


class ProcessSample(NamedTuple):
    """One role's processes at one moment, children and all."""

    at: float
    """Seconds since the beginning."""
    memory: float
    """MiB of resident memory."""
    files: int
    threads: int


Curves = Mapping[str, Sequence[ProcessSample]]


@dataclass(frozen=True, kw_only=True)
class SoakPlan(SampledPlan, PairPlan):
    """A server at 80 % of what it can do, a worker that learns beside it: does memory grow, do files or threads?

    Growth is counted from a fifth of the time on, after caches have filled. Ctrl-C ends it with what there is.

    Example: `python -m benchmarks soak --minutes 30 --json`
    """

    minutes: Annotated[float, Ge(0.05)] = 30.0
    """How long."""
    every: Annotated[float, Ge(0.1)] = 5.0
    """Seconds between two looks at the processes."""
    measuring: Annotated[float, Ge(0.5)] = 20.0
    """Seconds to find out what the server can do."""
    max_tokens: Annotated[int, Ge(2)] = 64
    """Tokens of an answer at most; half so many at least."""
    out: Path = Path("out/soak")
    """Folder of the worker's log."""


def bench_soak(plan: SoakPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Run a server and a worker; Ctrl-C ends it early, with what there is.

    Raises StoreError and TrainingFailed when a process does not start or a worker is gone at the end.
    """
    pair = choose_pair(settings.serve, plan.target, plan.draft).load(settings.serve)
    jobs = shuffled_jobs(prompts_that_fit(plan, pair, settings.serve), plan.max_tokens)
    plan.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="osd-bench-soak-") as folder:
        own = settings_in(Path(folder), settings, pair, SERVERS[MAIN])
        figures, curves = soak(plan, own, Path(folder), jobs, watch)
    rows = [
        {"process": role, **each, "growth": f"{each['growth']:+.1%}"} for role, each in figures["processes"].items()
    ]
    facts = facts_of(plan, target=pair.target.name, draft=pair.draft.name)
    return BenchResult("soak", facts, figures, {"Processes": rows}, {"curves": draw(curves, plan.out)}, watch.stopped)


def draw(curves: Curves, out: Path) -> Path:
    """Draw memory, open files and threads by role over minutes; the time before growth is counted is shaded."""
    from osd.bench.harness.picture import COLOURS, FAINT, dress, make_panels, save

    figure, panels = make_panels(len(PANELS), 9, 2.7, across=1)
    last = max((samples[-1].at for samples in curves.values() if samples), default=0.0) / 60
    for axes, (what, label) in zip(panels, PANELS.items(), strict=True):
        for colour, (role, samples) in zip(COLOURS, curves.items(), strict=False):
            times = [sample.at / 60 for sample in samples]
            axes.plot(times, [getattr(sample, what) for sample in samples], color=colour, lw=1.3, label=role)
        axes.axvspan(0, SETTLING * last, color=FAINT, alpha=0.3, lw=0)
        axes.set(ylabel=label)
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower right", frameon=False)
        dress(axes)
    panels[-1].set_xlabel("minutes; shaded: before growth is counted")
    return save(figure, out, "soak")


def soak(
    plan: SoakPlan, settings: Settings, folder: Path, jobs: Sequence[ServeJob], watch: Watch
) -> tuple[dict[str, Any], Curves]:
    """Return the figures of a server with these settings, loaded with most of what it can do, and what was watched."""
    able, load = 0.0, Load()
    with ExitStack() as stack:
        note("starting the server and a worker")
        served = stack.enter_context(server(settings, folder))
        address = served.address._replace(extra=(*served.address.extra, *body_of(plan.sampling).items()))
        worker = stack.enter_context(worker_beside(served.config, plan.out / "worker.log"))
        watcher = Watcher({"server": served.process.pid, "worker": worker.pid}, plan.every)
        stack.callback(watcher.stop)
        with watch.until_ctrl_c():
            note("measuring what the server can do")
            begun = time.monotonic()
            first = closed_load(address, cycle(jobs), 2 * settings.serve.max_batch, plan.measuring)
            if not first.requests:
                raise StoreError(reason=f"The server answered nothing: {first.errors[0]}")
            able = first.requests / (time.monotonic() - begun)
            note(f"{able:.2f} requests a second; {SHARE:.0%} of that for {plan.minutes:g} minutes")
            seconds = 60 * plan.minutes
            open_load(address, _arrivals(jobs, SHARE * able, seconds), UNDER_WAY, seconds, load)
        watcher.stop()
        if not watch.stopped:
            worker.require_alive()
        learned = _learned(settings)
    found = growth(watcher.curves)
    return {
        "requests": load.requests + len(load.errors), "failed": len(load.errors),
        "errors": sorted(set(load.errors))[:5], "able_per_s": able, "offered_per_s": SHARE * able,
        "late": load.late, "processes": found,
        "growth_max": max((one["growth"] for one in found.values()), default=None),
        "versions_served": len(load.versions), **learned,
        **{name: value for name, value in load.percentiles().items() if name.startswith(("ttft", "tpot"))},
    }, watcher.curves  # fmt: skip


def _arrivals(jobs: Sequence[ServeJob], per_second: float, seconds: float) -> Iterator[TimedJob]:
    """Yield jobs at random times (Poisson)."""
    chance, at = random.Random(0), 0.0
    for job in cycle(jobs):
        at += chance.expovariate(per_second)
        if at > seconds:
            return
        yield TimedJob(at, job)


def _learned(settings: Settings) -> dict[str, int]:
    with open_store(settings) as store:
        states = [run.state for run in store.runs.list(limit=RUNS)]
    return {"published": states.count(RunState.PUBLISHED), "rejected": states.count(RunState.REJECTED)}


class Watcher:
    """Looks every so many seconds, in a thread of its own, at processes by their role. Stop it."""

    def __init__(self, processes: Mapping[str, int], every: float) -> None:
        self.curves: dict[str, list[ProcessSample]] = {role: [] for role in processes}
        self._processes, self._every = {role: psutil.Process(pid) for role, pid in processes.items()}, every
        self._begun, self._stopping = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="osd-soak-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The last look was the last."""
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        while True:
            for role, process in self._processes.items():
                if sample := look(process, time.monotonic() - self._begun):
                    self.curves[role].append(sample)
            if self._stopping.wait(self._every):
                return


def look(process: psutil.Process, at: float) -> ProcessSample | None:
    """What it and its children hold; None where it is gone. A child that ends meanwhile counts no more."""
    held = []
    with suppress(psutil.NoSuchProcess):
        for one in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess), one.oneshot():
                held.append((one.memory_info().rss / MIB, one.num_fds(), one.num_threads()))
    if not held or not process.is_running():
        return None
    memory, files, threads = (sum(column) for column in zip(*held, strict=True))
    return ProcessSample(at, float(memory), int(files), int(threads))


def ends(samples: Sequence[ProcessSample]) -> tuple[ProcessSample, ProcessSample] | None:
    """The state after settling and at the end, each of a window: its medians, and the fewest files, for clients'
    connections come and go and what leaks stays. None where too little was seen."""
    if len(samples) < 3:
        return None
    first, span = samples[0].at, samples[-1].at - samples[0].at
    begin = first + SETTLING * span
    early = [one for one in samples if begin <= one.at <= begin + WINDOW * span]
    late = [one for one in samples if one.at >= samples[-1].at - WINDOW * span]
    return (_state(early), _state(late)) if early and late else None


def _state(samples: Sequence[ProcessSample]) -> ProcessSample:
    at, memory, files, threads = zip(*samples, strict=True)
    return ProcessSample(statistics.median(at), statistics.median(memory), min(files), int(statistics.median(threads)))


def growth(curves: Curves) -> dict[str, dict[str, Any]]:
    """By role: memory, files and threads after settling and at the end, and by what share memory grew."""
    found = {}
    for role, samples in curves.items():
        if both := ends(samples):
            start, end = both
            found[role] = {
                "memory_mb": [round(start.memory, 1), round(end.memory, 1)], "growth": end.memory / start.memory - 1,
                "files": [start.files, end.files], "threads": [start.threads, end.threads],
            }  # fmt: skip
    return found
