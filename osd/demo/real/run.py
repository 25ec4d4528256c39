"""The demo on a real model from beginning to end: a target, heads of random weights, a trainer beside, and the loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.console import Console

from osd.demo import DemoOptions
from osd.demo.prompts import prompts
from osd.demo.real.panel import watching_gain
from osd.demo.real.report import leave_gain, next_steps, show_gain, summarise
from osd.demo.real.turns import GainLoop, RealTrace
from osd.demo.runner.circle import looking_on, make_new_folder, own_settings
from osd.demo.runner.process import WorkerProcess, save_settings, worker_beside
from osd.demo.runner.report import tidy
from osd.demo.runner.run import ctrl_c
from osd.engine.engine import Engine
from osd.engine.session import serving
from osd.hotswap.new_draft import new_feature_version
from osd.models.pair import load_pair
from storage.records import DEFAULT_DRAFT, RunState
from storage.settings import Settings
from storage.store import Store, open_store

TOKENS = 48
"""Tokens of an answer at most, where nobody says."""
ROWS = 8
"""Rows at which answers are gathered."""
LEARNING: dict[str, dict[str, Any]] = {
    "serve": {"record_hidden_states": True},
    "drafters": {"kind": "tree"},
    "learn": {
        "draft_vocabulary": 2048, "steps": 4, "interval_requests": 32, "replay_requests": 128, "replay": "reservoir",
        "epochs": 3, "batch_positions": 128, "learning_rate": 0.0015, "max_age_seconds": 3600.0,
    },
}  # fmt: skip
"""What is set beside the defaults, here and for a model of one's own."""
GATHER_SECONDS, CLOSING_SECONDS = 20.0, 20.0
"""How long answers are gathered before the next question is measured; and for the trainer's end and the report."""
QUESTIONS = 5000
AND_BACK = 24
"""Minutes from which on the questions change to SQL and back."""
AWAY = (0.4, 0.7)
"""Between which shares of the time they are SQL's."""


def run_real(
    settings: Settings, options: DemoOptions, model: tuple[Path, str], out: Path, console: Console, *, begun: float,
    port: int | None,
) -> dict[str, Any]:  # fmt: skip
    """Let heads learn from a real model's answers until ``options.minutes`` after ``begun`` (``time.perf_counter()``).

    ``model``: folder, and where it comes from. ``out`` must be new. Writes report.html there, which shows the run while
    it goes on, gain.png and summary.json; returns what is in the last. Ctrl-C ends it and what it started, and reports
    what was measured. Raises PairError, StoreError, TrainingFailed.
    """
    trace = RealTrace(options.minutes * 60 - CLOSING_SECONDS, begun=begun)
    try:
        with (
            _serving(settings, options, str(model[0]), out) as (engine, store, worker),
            looking_on(engine, store, port, console),
            ctrl_c() as heed,
            watching_gain(trace, out, console, heed) as look,
        ):
            loop = GainLoop(engine, trace, options.max_tokens or TOKENS, look)
            _turn(loop, trace, options, store, worker)
    except KeyboardInterrupt:
        trace.interrupted = True
    finally:
        if not options.keep:
            tidy(out / "data", out)
    steps, summary = next_steps(LEARNING, options.heads), summarise(trace, model[1])
    if trace.answers:
        leave_gain(trace, summary, steps, out)
        show_gain(summary, out, console)
        console.print(f"\n{steps}", highlight=False, markup=False, soft_wrap=True)
    if trace.interrupted:
        console.print("Stopped before the end; nothing is left running.", soft_wrap=True)
    return summary


def _turn(loop: GainLoop, trace: RealTrace, options: DemoOptions, store: Store, worker: WorkerProcess) -> None:
    """Gather and measure until the time is over. Raises TrainingFailed when the trainer is gone."""
    drawn = {name: cycle(prompts(name, QUESTIONS, options.seed)) for name in ("arithmetic", "sql")}
    while trace.now < trace.seconds:
        is_away = options.minutes >= AND_BACK and AWAY[0] <= trace.now / trace.seconds < AWAY[1]
        trace.domain = "sql" if is_away else "arithmetic"
        loop.gather(drawn[trace.domain], min(trace.now + GATHER_SECONDS, trace.seconds))
        for _ in range(1 if trace.now < trace.seconds / 2 else 2):
            if trace.now < trace.seconds:
                loop.measure(next(drawn[trace.domain]))
        worker.require_alive()
        states = [run.state for run in store.runs.list(DEFAULT_DRAFT, limit=1 << 20)]
        trace.published, trace.rejected = states.count(RunState.PUBLISHED), states.count(RunState.REJECTED)


@contextmanager
def _serving(
    settings: Settings, options: DemoOptions, target: str, out: Path
) -> Iterator[tuple[Engine, Store, WorkerProcess]]:
    """Start everything, and stop it however the block ends."""
    make_new_folder(out / "data")
    serve = {**LEARNING["serve"], "target": target, "max_batch": ROWS}
    own = own_settings(settings, out / "data", **{**LEARNING, "serve": serve})
    config = save_settings(own, out / "data" / "osd.toml")
    with open_store(own) as store:
        tokens = own.learn.draft_vocabulary
        version = new_feature_version(store, DEFAULT_DRAFT, target, options.heads, vocabulary=tokens)
        pair = load_pair(target, store.versions.folder(version), device=own.serve.device, dtype=own.serve.dtype)
        with serving(pair, own, store) as engine, worker_beside(config, out / "worker.log") as worker:
            yield engine, store, worker
