"""``python -m benchmarks servers``: osd's server beside those of transformers and vLLM, on the same prompts.

Servers live at the same time and take turns, as in `osd bench serve`, and who has no turn is stopped (SIGSTOP). One
that does not start, or does not answer, is named with what it said, and the others go on.

transformers serve is that of the installed transformers; it drafts only by looking the prompt up, for it takes no
assistant. vLLM is that of another Python environment, for its versions of torch and transformers are its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge

from osd.bench.harness.plan import Count, PairPlan, facts_of
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import Turn, measure_all, turns_of
from osd.bench.harness.watch import Watch, note
from osd.bench.serve.bench import SERVERS, WARM_SECONDS
from osd.bench.serve.client import Address
from osd.bench.serve.load import Load, closed_load, together
from osd.bench.serve.process import ServerProcess, awake, running, server, settings_in, signal_group, wait_for
from osd.bench.serve.requests import ServeJob, jobs_of, prompts_that_fit, shuffled_jobs
from osd.bench.serve.result import MAIN
from osd.models.pair import Pair
from osd.server.start import choose_pair
from storage.errors import StoreError
from storage.settings import Settings

TURNS = 3
"""Into so many parts the seconds of a server are divided."""
LOOKED_UP = 3
"""Tokens that a look-up in the prompt drafts, for all who can."""
LOCAL = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every vLLM of a machine binds its threads to the first cores
}  # fmt: skip
KV_GIB = "1"
OWN: dict[str, dict[str, Any]] = {"osd": SERVERS[MAIN], "osd off": {"rule": "fixed", "initial": 0}}


@dataclass(frozen=True, kw_only=True)
class ServersPlan(PairPlan):
    """Tokens a second of osd's server beside `transformers serve` and vLLM: same prompts, same run, in turns.

    transformers serves one at a time, with its continuous batching, and with look-up in the prompt, the only
    speculation that it offers. vLLM serves as it is, with the draft, and with look-up. What does not start is named.

    Example: `python -m benchmarks servers --vllm /opt/vllm/bin/python --json`
    """

    concurrency: tuple[Count, ...] = (1, 8)
    """Clients at a time."""
    seconds: Annotated[float, Ge(0.1)] = 6.0
    """Seconds of each server at each level."""
    max_tokens: Annotated[int, Ge(2)] = 64
    """Tokens of every answer."""
    vllm: Path | None = None
    """Python of an environment that has vLLM; without it vLLM is left out."""


def bench_servers(plan: ServersPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Measure tokens a second by server and clients; tell what did not start."""
    pair = choose_pair(settings.serve, plan.target, plan.draft).load(settings.serve)
    texts, most = prompts_that_fit(plan, pair, settings.serve), plan.max_tokens
    jobs = shuffled_jobs(texts, most, most)  # transformers serve knows one length
    others = transformers_ways(pair, most)
    others += vllm_ways(pair, plan.vllm, settings.serve.max_batch) if plan.vllm else []
    found: dict[str, dict[int, list[Load]]] = {}
    with ExitStack() as stack:
        up, wrong = _start(stack, pair, settings, others, watch)
        for name, one in list(up.items()):
            watch.at(f"warming up {name}")
            load = _load(one, jobs_of(jobs, 0), max(plan.concurrency), WARM_SECONDS)
            if load.errors:
                wrong[name] = load.errors[0]
                del up[name]

        def measure(job: Turn) -> None:
            load = _load(up[job.arm], jobs_of(jobs, job.turn), job.clients, plan.seconds / TURNS)
            found.setdefault(job.arm, {}).setdefault(job.clients, []).append(load)

        measure_all([turn for level in plan.concurrency for turn in turns_of(list(up), TURNS, level)], measure, watch)
    lines = {name: {str(n): _line(together(loads)) for n, loads in own.items()} for name, own in found.items()}
    speculating = ["osd", *(other.name for other in others if other.speculates and other.name in up)]
    figures = {"servers": lines, "speculating": speculating, "not_running": wrong, "turns": TURNS}
    rows = [
        {"server": name} | {f"{level} at a time, tok/s": each["tokens_per_s"] for level, each in line.items()}
        for name, line in lines.items()
    ]
    for name, why in wrong.items():
        note(f"{name}: {why}")
    facts = facts_of(plan, target=pair.target.name, draft=pair.draft.name)
    return BenchResult("servers", facts, figures, {"Tokens a second": rows}, interrupted=watch.stopped)


def _load(up: ServerProcess | Up, jobs: Iterator[ServeJob], clients: int, seconds: float) -> Load:
    with awake(up.process):
        return closed_load(up.address, jobs, clients, seconds)


def _start(
    stack: ExitStack, pair: Pair, settings: Settings, others: Sequence[Other], watch: Watch
) -> tuple[dict[str, ServerProcess | Up], dict[str, str]]:
    """Return those that listen, stopped until their turn, and why others do not."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="osd-bench-servers-")))
    up: dict[str, ServerProcess | Up] = {}
    wrong: dict[str, str] = {}
    asked: dict[str, AbstractContextManager[ServerProcess | Up]] = {
        name: server(settings_in(folder / name, settings, pair, gamma), folder / name) for name, gamma in OWN.items()
    }
    asked |= {other.name: other_server(other, folder / f"{other.name}.log") for other in others}
    for name, one in asked.items():
        watch.at(f"starting {name}")
        try:
            up[name] = stack.enter_context(one)
            signal_group(up[name].process, signal.SIGSTOP)
        except StoreError as error:
            wrong[name] = str(error)
    return up, wrong


def _line(load: Load) -> Mapping[str, Any]:
    shown = {name: value for name, value in load.percentiles().items() if name in ("ttft_ms_p50", "tpot_ms_p50")}
    return {"tokens_per_s": load.rate, **shown, "failed": len(load.errors), "errors": sorted(set(load.errors))[:2]}


@dataclass(frozen=True, slots=True)
class Other:
    """One way to run one of them."""

    name: str
    command: Sequence[str]
    """Without the port, which comes last."""
    extra: Mapping[str, Any]
    """Fields of every body."""
    text: Callable[[Sequence[int]], str] | None = None
    """Where it takes no tokens as a prompt."""
    speculates: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of its environment beside those of all."""


def transformers_ways(pair: Pair, max_tokens: int) -> list[Other]:
    """One request at a time, all in one batch, and one at a time with look-up."""
    command = [
        sys.executable, "-P", "-m", "transformers.cli.transformers", "serve", pair.target.name, "--host", "127.0.0.1",
        "--device", "cpu", "--dtype", _dtype(pair),
    ]  # fmt: skip
    tokenizer: Any = pair.tokenizer
    exact = {"max_new_tokens": max_tokens, "min_new_tokens": max_tokens, "do_sample": False} | _ends(pair)
    looking = exact | {"prompt_lookup_num_tokens": LOOKED_UP}

    def text(prompt: Sequence[int]) -> str:
        return str(tokenizer.decode(list(prompt)))

    def way(name: str, config: Mapping[str, Any], *options: str, speculates: bool = False) -> Other:
        body = {"model": pair.target.name, "generation_config": json.dumps(config)}
        return Other(f"transformers{name}", [*command, *options, "--port"], body, text, speculates)

    return [
        way("", exact), way(" batching", exact, "--continuous-batching"), way(" look-up", looking, speculates=True)
    ]  # fmt: skip


def vllm_ways(pair: Pair, python: Path, rows: int) -> list[Other]:
    """As it is, with the draft, and with look-up."""
    command = vllm_command(python, pair.target.name, _dtype(pair), pair.limit, rows)
    draft = {"method": "draft_model", "model": pair.draft.name, "num_speculative_tokens": LOOKED_UP}
    looking = {"method": "ngram", "num_speculative_tokens": LOOKED_UP, "prompt_lookup_max": LOOKED_UP}
    body = {"model": pair.target.name, "ignore_eos": True}
    return [Other("vllm", [*command, "--port"], body)] + [
        Other(f"vllm {name}", [*command, "--speculative-config", json.dumps(how), "--port"], body, speculates=True)
        for name, how in (("draft", draft), ("look-up", looking))
    ]


def vllm_command(python: Path, target: str, dtype: str, length: int, rows: int) -> list[str]:
    """Return the command line of a vLLM that serves a target on this machine, but for its port."""
    return [
        str(python), "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", target, "--host", "127.0.0.1",
        "--dtype", dtype, "--max-model-len", str(length), "--max-num-seqs", str(rows),
    ]  # fmt: skip


def _dtype(pair: Pair) -> str:
    """The one that osd decodes in, so that all compute the same."""
    return str(next(pair.target.module.parameters()).dtype).removeprefix("torch.")


def _ends(pair: Pair) -> dict[str, Any]:
    ends = sorted(pair.eos_ids)
    return {"eos_token_id": ends, "pad_token_id": ends[0]} if ends else {}


class Up(NamedTuple):
    """A server that listens."""

    address: Address
    process: subprocess.Popen[bytes]


@contextmanager
def other_server(other: Other, log: Path) -> Iterator[Up]:
    """It, while it listens. Raises StoreError where it does not come to that."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = LOCAL | {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", KV_GIB)}
    with running([*other.command, str(port)], log, variables | dict(other.variables)) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(other.name, process, log, lambda: _healthy(url) or None)
        yield Up(Address(url, tuple(other.extra.items()), other.text), process)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
