"""``python -m benchmarks soak``: a server under most of the load that it can take, for as long as is asked for, with a
worker beside it that trains on what is served, watched for what grows."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.soak.watch import SETTLING, Curves, Watcher, growth
from osd.bench.harness.options import (
    DraftOption,
    JsonOption,
    MaxTokensOption,
    TargetOption,
    TemperatureOption,
    TopPOption,
    body_of,
    sampling_of,
)  # fmt: skip
from osd.bench.harness.prompts import PromptFiles
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
from storage.sampling import GREEDY, Sampling
from storage.settings import Settings, load_settings
from storage.store import open_store

SHARE = 0.8
"""Share of what the server can do that is asked for."""
UNDER_WAY = 64
RUNS = 100_000
PANELS = {"memory": "resident memory, MiB", "files": "open files", "threads": "threads"}


def command(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptFiles = None,
    minutes: Annotated[float, typer.Option(help="How long.", min=0.05)] = 30.0,
    every: Annotated[float, typer.Option(help="Seconds between two looks at the processes.", min=0.1)] = 5.0,
    measuring: Annotated[float, typer.Option(help="Seconds to find out what the server can do.", min=0.5)] = 20.0,
    max_tokens: MaxTokensOption = 64,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    out: Annotated[Path, typer.Option(help="Folder of the picture and the worker's log.", metavar="DIR")] = (
        Path("out/soak")
    ),
    json: JsonOption = False,
) -> None:
    """A server at 80 % of what it can do, a worker that learns beside it: does memory grow, do files or threads?

    Growth is counted from a fifth of the time on, after caches have filled. Ctrl-C ends it with what there is.

    Example: `python -m benchmarks soak --minutes 30 --json`
    """
    settings, sampling = load_settings(), sampling_of(temperature, top_p)
    pair = choose_pair(settings.serve, target, draft).load(settings.serve)
    jobs = shuffled_jobs(prompts_that_fit(pair, settings.serve, prompts, max_tokens), max_tokens)
    out.mkdir(parents=True, exist_ok=True)
    watch = Watch()
    with TemporaryDirectory(prefix="osd-bench-soak-") as folder:
        own = settings_in(Path(folder), settings, pair, SERVERS[MAIN])
        figures, curves = bench_soak(
            own, Path(folder), out / "worker.log", jobs, minutes, every, measuring, watch, sampling
        )
    rows = [
        {"process": role, **each, "growth": f"{each['growth']:+.1%}"} for role, each in figures["processes"].items()
    ]
    facts = {"target": pair.target.name, "draft": pair.draft.name, "minutes": minutes, "max_tokens": max_tokens}
    facts |= {"temperature": temperature, "top_p": top_p}
    files = {"curves": draw(curves, out)}
    result = BenchResult("soak", facts, figures, {"Processes": rows}, files, watch.stopped)
    raise typer.Exit(result.show(as_json=json))


def bench_soak(
    settings: Settings, folder: Path, log: Path, jobs: Sequence[ServeJob], minutes: float, every: float,
    measuring: float, watch: Watch, sampling: Sampling = GREEDY,
) -> tuple[dict[str, Any], Curves]:  # fmt: skip
    """Run a server with these settings; Ctrl-C ends it early, with what there is. ``every``: seconds between two looks;
    ``measuring``: seconds in which it is found out what the server can do.

    Raises StoreError and TrainingFailed when a process does not start or a worker is gone at the end.
    """
    able, load = 0.0, Load()
    with ExitStack() as stack:
        note("starting the server and a worker")
        served = stack.enter_context(server(settings, folder))
        address = served.address._replace(extra=(*served.address.extra, *body_of(sampling).items()))
        worker = stack.enter_context(worker_beside(served.config, log))
        watcher = Watcher({"server": served.process.pid, "worker": worker.pid}, every)
        stack.callback(watcher.stop)
        with watch.until_ctrl_c():
            note("measuring what the server can do")
            begun = time.monotonic()
            first = closed_load(address, cycle(jobs), 2 * settings.serve.max_batch, measuring)
            if not first.requests:
                raise StoreError(reason=f"The server answered nothing: {first.errors[0]}")
            able = first.requests / (time.monotonic() - begun)
            note(f"{able:.2f} requests a second; {SHARE:.0%} of that for {minutes:g} minutes")
            arrivals = _arrivals(jobs, SHARE * able, 60 * minutes)
            open_load(address, arrivals, UNDER_WAY, 60 * minutes, load)
        watcher.stop()
        if not watch.stopped:
            worker.require_alive()
        learned = _learned(settings)
    found = growth(watcher.curves)
    return {
        "minutes": minutes, "requests": load.requests + len(load.errors), "failed": len(load.errors),
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
