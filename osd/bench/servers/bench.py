"""Everybody on the same prompts: plain at every concurrency, and where it speculates one at a time too.

Servers live at the same time and take turns, as in `osd bench serve`, and who has no turn is stopped (SIGSTOP). One
that does not start, or does not answer, is named with what it said, and the others go on.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from osd.bench.harness.turns import shifted
from osd.bench.serve.bench import SERVERS, WARM_SECONDS
from osd.bench.serve.client import ServeJob
from osd.bench.serve.load import Load, closed_load
from osd.bench.serve.process import awake, server, settings_in, signal_group
from osd.bench.serve.result import MAIN
from osd.bench.serve.turns import jobs_of, shuffled_jobs
from osd.bench.servers.others import Other, Up, other_server, transformers_ways, vllm_ways
from osd.models.pair import Pair
from storage.errors import StoreError
from storage.settings import Settings

TURNS = 3
"""Into so many parts the seconds of a server are divided."""
OFF = {"rule": "fixed", "initial": 0}
Report = Callable[[str], None]


def bench_servers(
    pair: Pair, prompts: Sequence[Sequence[int]], settings: Settings, *, levels: Sequence[int], seconds: float,
    max_tokens: int, vllm: Path | None, report: Report,
) -> dict[str, Any]:  # fmt: skip
    """Tokens a second by server and clients; what did not start."""
    jobs = shuffled_jobs(prompts, max_tokens, max_tokens)  # transformers serve knows one length
    others = transformers_ways(pair, max_tokens) + (vllm_ways(pair, vllm, settings.serve.max_batch) if vllm else [])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="osd-bench-servers-")))
        found: dict[str, dict[int, Load]] = {}
        up, wrong = _start(stack, folder, pair, settings, others, report)
        for name, one in list(up.items()):
            report(f"warming up {name}")
            load = _load(one, jobs_of(jobs, 0), max(levels), WARM_SECONDS)
            if load.errors:
                wrong[name] = load.errors[0]
                del up[name]
        for level in levels:
            for turn in range(TURNS):
                report(f"{level} at a time, turn {turn + 1} of {TURNS}")
                for name in shifted(list(up), turn):
                    load = _load(up[name], jobs_of(jobs, turn), level, seconds / TURNS)
                    found.setdefault(name, {}).setdefault(level, Load()).add(load)
    lines = {name: {str(level): _line(load) for level, load in loads.items()} for name, loads in found.items()}
    speculating = ["osd", *(other.name for other in others if other.speculates and other.name in up)]
    return {"servers": lines, "speculating": speculating, "not_running": wrong, "turns": TURNS, "seconds": seconds}


def _load(up: Up, jobs: Iterator[ServeJob], clients: int, seconds: float) -> Load:
    with awake(up.process):
        return closed_load(up.address, jobs, clients, seconds)


def _start(
    stack: ExitStack, folder: Path, pair: Pair, settings: Settings, others: Sequence[Other], report: Report
) -> tuple[dict[str, Up], dict[str, str]]:
    """Those that listen, and why others do not."""
    up: dict[str, Up] = {}
    wrong: dict[str, str] = {}
    for name, gamma in (("osd", SERVERS[MAIN]), ("osd off", OFF)):
        report(f"starting {name}")
        own = settings_in(folder / name, settings, pair, gamma)
        made = stack.enter_context(server(own, folder / name))
        up[name] = Up(made.address, made.process)
        signal_group(made.process, signal.SIGSTOP)
    for other in others:
        report(f"starting {other.name}")
        try:
            up[other.name] = stack.enter_context(other_server(other, folder / f"{other.name}.log"))
        except StoreError as error:
            wrong[other.name] = str(error)
        else:
            signal_group(up[other.name].process, signal.SIGSTOP)
    return up, wrong


def _line(load: Load) -> Mapping[str, Any]:
    shown = {name: value for name, value in load.percentiles().items() if name in ("ttft_ms_p50", "tpot_ms_p50")}
    return {"tokens_per_s": load.rate, **shown, "failed": load.failed, "errors": sorted(set(load.errors))[:2]}
