"""The arms: a server that does not speculate, one with fixed drafts, one with goodput; and the engine without HTTP."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from osd.bench.serve.load import Load, run_load
from osd.models import Pair
from osd.online.process import PATIENCE, environment, save_settings
from osd.serving import serving
from storage.errors import StoreError
from storage.records import Request
from storage.settings import Settings
from storage.store import open_store

ARMS: dict[str, dict[str, Any]] = {
    "off": {"gamma": "fixed", "gamma_initial": 0}, "fixed": {"gamma": "fixed"}, "goodput": {"gamma": "goodput"},
}  # fmt: skip
MAIN = "goodput"
"""The arm whose latencies are shown, and that is compared with the engine alone."""
READY = re.compile(r"Serving (http://\S+)/v1")
START_SECONDS = 300.0
WARM_UP = 2
"""Prompts a row before anything counts."""
Prompts = Sequence[Sequence[int]]
Report = Callable[[str], None]


def bench_serve(
    pair: Pair, prompts: Prompts, settings: Settings, *, levels: Sequence[int], count: int, max_tokens: int,
    report: Report,
) -> dict[str, Any]:  # fmt: skip
    """Each arm at each level of concurrency: ``count`` answers a client, four at least. Raises StoreError when a server
    does not start."""
    found: dict[str, dict[int, Load]] = {}
    for arm in ARMS:
        with TemporaryDirectory(prefix="osd-bench-serve-") as folder:
            chosen = of_arm(settings, pair, arm, Path(folder))
            with server(chosen, Path(folder)) as url:
                run_load(url, _some(prompts, WARM_UP * chosen.serve.max_batch), chosen.serve.max_batch, max_tokens)
                found[arm] = {}
                for level in levels:
                    report(f"{arm}, {level} at a time")
                    found[arm][level] = run_load(url, _some(prompts, max(4, count * level)), level, max_tokens)
    report("the engine alone")
    offline = offline_rate(pair, prompts, settings, count=count, max_tokens=max_tokens)
    full = min(levels, key=lambda level: abs(level - settings.serve.max_batch))
    return {
        "by_concurrency": {str(level): _line(found, level) for level in levels},
        "offline_tokens_per_s": offline,
        "server_over_offline": found[MAIN][full].rate / offline,
        "compared_at": full,
    }


def _line(found: dict[str, dict[int, Load]], level: int) -> dict[str, Any]:
    rates = {arm: loads[level].rate for arm, loads in found.items()}
    failed = sum(loads[level].failed for loads in found.values())
    return {**rates, **found[MAIN][level].percentiles(), "failed": failed}


def _some(prompts: Prompts, count: int) -> list[Sequence[int]]:
    return list(islice(cycle(prompts), count))


def of_arm(settings: Settings, pair: Pair, arm: str, folder: Path) -> Settings:
    """The settings of an arm's server: its own store, free ports, the pair by name."""
    serve = {"target": pair.target.name, "draft": pair.draft.name, **ARMS[arm]}
    server = {"host": "127.0.0.1", "port": 0, "admin_port": 0}
    return settings.model_copy(update={
        "serve": settings.serve.model_copy(update=serve), "server": settings.server.model_copy(update=server),
        "storage": settings.storage.model_copy(update={"directory": folder / "data", "url": None}),
    })  # fmt: skip


@contextmanager
def server(settings: Settings, folder: Path) -> Iterator[str]:
    """An `osd serve` with these settings; its address. Raises StoreError when it does not start."""
    config, log = save_settings(settings, folder / "osd.toml"), folder / "log"
    command = [sys.executable, "-P", "-m", "osd.cli.main", "--config", str(config), "serve"]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment() | {"COLUMNS": "300"})
    try:
        yield _address(process, log)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if found := READY.search(log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise StoreError(reason="The server did not start: " + " ".join(log.read_text().splitlines()[-3:]))


def offline_rate(pair: Pair, prompts: Prompts, settings: Settings, *, count: int, max_tokens: int) -> float:
    """Tokens a second of the main arm's engine in this process, in the circle, with a full batch."""
    batch = settings.serve.max_batch
    with TemporaryDirectory(prefix="osd-bench-serve-") as folder:
        chosen = of_arm(settings, pair, MAIN, Path(folder))
        with open_store(chosen) as store, serving(pair, chosen, store) as engine:

            def serve(some: Sequence[Sequence[int]]) -> int:
                asked = (Request(tuple(prompt), max_new_tokens=max_tokens, ignore_eos=True) for prompt in some)
                return sum(len(done.tokens) for done in engine.run(asked))

            serve(_some(prompts, WARM_UP * batch))
            begun = time.perf_counter()
            tokens = serve(_some(prompts, max(4, count * batch)))
            return tokens / (time.perf_counter() - begun)
