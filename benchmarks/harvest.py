"""``python -m benchmarks harvest``: what harvesting costs a running vLLM.

Two vLLMs with the same draft, one with osd's plugin and one without, are loaded turn about with the same prompts; who
has no turn is stopped (SIGSTOP). The one without is loaded twice in every turn: what its two parts differ by is noise.
Answers are taken by a collector that throws them away, as if `osd attach` ran on a machine of its own.
"""

from __future__ import annotations

import gzip
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Annotated, Any, NamedTuple

import psutil
from annotated_types import Ge

from benchmarks.servers import Up
from benchmarks.vllm.server import PLUGIN, WORKER, plugin_variables, speculation, vllm_process
from osd.bench.harness.plan import Count, PairPlan, facts_of
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all, ratio_of_turns, turns_of
from osd.bench.harness.watch import Watch
from osd.bench.serve.client import Address
from osd.bench.serve.load import Load, closed_load, together
from osd.bench.serve.process import EXACT, awake, signal_group
from osd.bench.serve.requests import ServeJob, jobs_of, prompts_that_fit, shuffled_jobs
from osd.server.start import choose_pair
from storage.errors import StoreError
from storage.settings import Settings

TOKEN = "thrown away by the collector"
WITHOUT, HARVESTED, AGAIN = "without", "harvested", "without again"
ARMS = {WITHOUT: WITHOUT, HARVESTED: HARVESTED, AGAIN: WITHOUT}
"""Arm → the vLLM that it loads."""
WARM_SECONDS = 4.0
TIMES = ("ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p99")


class ArmLoad(NamedTuple):
    """What came of an arm's part of a turn."""

    load: Load
    cpu_seconds: float
    """What all of vLLM's processes used."""


@dataclass(frozen=True, kw_only=True)
class HarvestPlan(PairPlan):
    """Times to the first token, per token, and tokens a second of a vLLM with and without osd's harvest, in turns.

    Example: `python -m benchmarks harvest --vllm .venv-vllm/bin/python --json`
    """

    vllm: Path
    """Python of an environment that has vLLM and osd's plugin."""
    clients: Count = 8
    """Clients at a time."""
    turns: Annotated[int, Ge(2)] = 8
    """Turns of each arm."""
    seconds: Annotated[float, Ge(0.1)] = 8.0
    """Seconds of an arm in a turn."""
    max_tokens: Annotated[int, Ge(2)] = 64
    """Tokens of an answer at most; half so many at least."""
    positions: Annotated[int, Ge(0)] = 100
    """Positions a second that are harvested at most (OSD_VLLM_POSITIONS); 0: all."""


def bench_harvest(plan: HarvestPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Start both vLLMs, and load them in turns."""
    pair = choose_pair(settings.serve, plan.target, plan.draft).load(settings.serve)
    jobs = shuffled_jobs(prompts_that_fit(plan, pair, settings.serve), plan.max_tokens)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="osd-bench-harvest-")))
        taken = stack.enter_context(collecting())
        watch.at("starting two vLLMs")
        told = plugin_variables(folder, TOKEN, taken.url) | {"OSD_VLLM_POSITIONS": str(plan.positions)}
        up = start(stack, plan.vllm, Path(pair.target.name), Path(pair.draft.name), folder, told)
        loads = measure(plan, up, jobs, watch)
    figures = figures_of(loads) | {"collected": taken.answers}
    rows = [{"arm": arm} | dict(line) for arm, line in figures["arms"].items()]
    facts = facts_of(plan, target=pair.target.name, draft=pair.draft.name)
    return BenchResult("harvest", facts, figures, {"With and without": rows}, interrupted=watch.stopped)


def start(
    stack: ExitStack, vllm: Path, target: Path, draft: Path, folder: Path, told: Mapping[str, str]
) -> dict[str, Up]:
    """Return both vLLMs, stopped until their turn. ``told``: the plugin's variables. Raises StoreError where one does
    not start."""
    said = {
        WITHOUT: (speculation(draft), {"VLLM_PLUGINS": ""}),
        HARVESTED: ((*speculation(draft), *PLUGIN, *WORKER), told),
    }
    up = {}
    for name, (options, variables) in said.items():
        up[name] = stack.enter_context(vllm_process(vllm, target, folder / f"{name}.log", options, variables))
        signal_group(up[name].process, signal.SIGSTOP)
    return up


def measure(plan: HarvestPlan, up: dict[str, Up], jobs: Sequence[ServeJob], watch: Watch) -> dict[str, list[ArmLoad]]:
    """Return what came of each arm, turn by turn, after each vLLM was warmed up. Raises StoreError for one that does
    not answer."""
    found: dict[str, list[ArmLoad]] = {arm: [] for arm in ARMS}

    def load(arm: str, turn: int, lasting: float) -> ArmLoad:
        server = up[ARMS[arm]]
        address = Address(server.address.url, EXACT)
        with awake(server.process):
            before = cpu_seconds(server.process.pid)
            one = closed_load(address, jobs_of(jobs, turn), plan.clients, lasting)
            return ArmLoad(one, cpu_seconds(server.process.pid) - before)

    for arm in (WITHOUT, HARVESTED):
        if errors := load(arm, 0, WARM_SECONDS).load.errors:
            raise StoreError(reason=f"vLLM does not answer: {errors[0]}")
    turns = turns_of(list(ARMS), plan.turns)
    measure_all(turns, lambda job: found[job.arm].append(load(job.arm, job.turn, plan.seconds)), watch)
    return found


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process and those that it started have used so far."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def figures_of(loads: dict[str, list[ArmLoad]]) -> dict[str, Any]:
    """Return each arm's rate, times and processor time, and two ratios of rates, medians of the turns: harvested ÷
    the mean of the two without, and those two by each other, which is noise."""
    rates = {arm: [one.load.rate for one in some] for arm, some in loads.items()}
    both = [(one + two) / 2 for one, two in zip(rates[WITHOUT], rates[AGAIN], strict=False)]
    cost, noise = ratio_of_turns(rates[HARVESTED], both), ratio_of_turns(rates[AGAIN], rates[WITHOUT])
    arms = {arm: _line(some) for arm, some in loads.items() if some}
    return {"arms": arms, "tokens_ratio": cost._asdict(), "noise": noise._asdict(), "rates": rates}


def _line(parts: Sequence[ArmLoad]) -> dict[str, Any]:
    load = together([one.load for one in parts])
    cpu = 1000 * sum(one.cpu_seconds for one in parts) / max(1, load.answered)
    shown = {name: value for name, value in load.percentiles().items() if name in TIMES}
    counts = {"requests": load.requests, "failed": len(load.errors)}
    return {"tokens_per_s": load.rate, **shown, "cpu_ms_per_token": cpu, **counts}


class HarvestSink:
    """What a collector was given."""

    def __init__(self, url: str) -> None:
        self.url, self.answers = url, 0


@contextmanager
def collecting() -> Iterator[HarvestSink]:
    """Take batches of answers, and throw them away."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            batch = json.loads(gzip.decompress(self.rfile.read(int(self.headers["Content-Length"]))))
            taken.answers += len(batch["answers"])
            said = json.dumps({"batch": batch["batch"]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    taken = HarvestSink(f"http://127.0.0.1:{server.server_port}")
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield taken
    finally:
        server.shutdown()
        server.server_close()
