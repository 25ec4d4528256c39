"""One run from beginning to end: turn the circle, watch, stop everything, leave what was measured.

A run may end with the upper bound of the OSD paper: the frozen draft distilled offline on a segment's own prompts, all
of them at hand. It learns from what was recorded while the segment was served, held-out requests included, for two
epochs and with the same settings as online; then it reads the same texts.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from osd.demo import DRAFT, TARGET, DemoOptions
from osd.demo.prompts import DOMAINS
from osd.demo.runner.circle import Circle, StreamPlan, looking_on, own_settings, stay, turning
from osd.demo.runner.panel import watching
from osd.demo.runner.process import distil_offline
from osd.demo.runner.report import leave, show, tidy
from osd.demo.runner.results import RunResults, collect, segment_facts
from osd.demo.runner.source import demo_segments
from osd.demo.runner.stream import StreamTrace, draft_hits
from osd.drafters.scoring import drawn_from
from osd.engine.session import in_folder
from osd.models.pair import with_draft
from storage.settings import Settings

TITLE = "osd demo"
REMARK = "The target that ships with osd is tiny: it keeps the form of an answer and not its truth."
TOKENS = 64
"""Tokens of an answer at most, where nobody says."""
EPOCHS = 2
"""Epochs of offline distillation."""


def run_demo(
    settings: Settings, options: DemoOptions, out: Path, console: Console, *, port: int | None, stay: bool
) -> RunResults:
    """Serve the demo's domains one after another while a worker process trains the draft.

    ``console``: where panel and table go. ``out`` must be new. Writes summary.json, report.html, acceptance.svg and
    .png there. Ctrl-C ends everything that was started and reports what was served until then
    (``facts["interrupted"]``). ``port``: where the dashboard is meanwhile; None for none. With ``stay`` it is open
    until Ctrl-C.
    Raises BadSetting, StoreWriteFailed, TrainingFailed.
    """
    serve = {"max_batch": options.batch, "target": str(TARGET), "draft": str(DRAFT)}
    plan = StreamPlan(
        str(TARGET), str(DRAFT), demo_segments(options.requests, options.seed, options.domain or tuple(DOMAINS)), out,
        own_settings(settings, out / "data", serve=serve, drafters={"kind": options.drafter}), options.arrival,
        options.max_tokens or TOKENS, port=port, stay=stay,
    )  # fmt: skip
    return run(plan, TITLE, console, keep=options.keep, remark=REMARK)


def last_line(results: RunResults) -> dict[str, Any]:
    """Return what ``osd demo --json`` prints."""
    named = (
        "requests", "failed", "published", "rejected", "lossless_checked", "lossless_failed", "speedup_vs_target",
        "swap_pause_ms_max", "round_ms_median",
    )  # fmt: skip
    parts = {name: segment_facts(results.of(name)) for name in results.segments}
    rates = ("alpha_frozen", "alpha_first", "alpha_last")
    domains = {name: {rate: part[rate] for rate in rates} for name, part in parts.items()}
    return {**{name: results.facts[name] for name in named}, "domains": domains}


def run(
    plan: StreamPlan,
    title: str,
    console: Console,
    *,
    keep: bool,
    offline: bool = False,
    notes: Sequence[str] = (),
    remark: str = "",
) -> RunResults:
    """Turn the circle of a plan. Ctrl-C ends the stream and what was started for it; what was measured until then is
    still reported.

    Raises PairError, StoreError, TrainingFailed.
    """
    try:
        results = _turn(plan, title, console, offline)
        results.notes, results.remark = [*notes, *results.notes], remark
        if results.served:
            _report(results, plan, console, keep)
        if results.facts["interrupted"]:
            console.print(
                f"Stopped after {len(results.served)} of {plan.requests} requests; nothing is left running.",
                soft_wrap=True,
            )
        return results
    finally:
        if not keep:
            tidy(plan.data, plan.out)


def _turn(plan: StreamPlan, title: str, console: Console, offline: bool) -> RunResults:
    trace = StreamTrace(plan.requests)
    with turning(plan) as circle, looking_on(circle.engine, circle.store, plan.port, console):
        interrupted = _go(circle, title, console, trace, offline)
        if interrupted:
            console.print("Stopping what was started …")
        return collect(circle, trace, title, interrupted=interrupted)


def _go(circle: Circle, title: str, console: Console, trace: StreamTrace, offline: bool) -> bool:
    """Serve everything, then the upper bound; tell whether somebody ended it early."""
    try:
        circle.warm_up()
        trace.begin()
        with ctrl_c() as heed, watching(circle, title, console) as watch:

            def look(trace: StreamTrace, segment: str) -> None:
                heed()
                watch(trace, segment)

            circle.stream(trace, look)
        trace.end()
        if offline:
            circle.worker.stop()
            read_offline(circle, trace, lambda text: console.print(f"[dim]{text}[/dim]"))
        if circle.plan.stay:
            stay(circle, console)
    except KeyboardInterrupt:
        return True
    finally:
        trace.end()
    return False


def _report(results: RunResults, plan: StreamPlan, console: Console, keep: bool) -> None:
    files = leave(results, plan.out)
    show(results, console)
    for what, path in files.items():
        console.print(f"[dim]{what}:[/dim] {path}", soft_wrap=True)
    if keep:
        config = plan.data / "osd.toml"
        console.print(f"[dim]the run's store:[/dim] osd --config {config} stats acceptance --by route", soft_wrap=True)


def read_offline(circle: Circle, trace: StreamTrace, tell: Callable[[str], None]) -> None:
    """Distil a draft for each segment and let it read the segment's texts; ``trace.served`` then has offline_hits.

    Raises TrainingFailed.
    """
    plan, start = circle.plan, Path(in_folder(circle.pair.draft).name)
    target = circle.pair.target.decoder(1, circle.engine.limit)
    for segment in plan.segments:
        served = trace.of(segment.name)
        if not served:
            continue
        tell(f"distilling offline on {segment.name}, {EPOCHS} epochs over {len(served)} requests")
        folder = distil_offline(
            plan.data / "osd.toml", plan.log, draft=start, route=segment.name,
            out=plan.out / "offline" / segment.name, epochs=EPOCHS,
        )  # fmt: skip
        reader = with_draft(circle.pair, folder, plan.settings.serve.dtype).draft.decoder(1, circle.engine.limit)
        for one in served:
            text = trace.completions[one.request_id]
            offline = sum(draft_hits(reader, text, drawn_from(target, text)))
            trace.served[one.index] = replace(one, offline_hits=offline)


@contextmanager
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Catch Ctrl-C so that it cannot be lost: yields a check to call in a loop, which raises KeyboardInterrupt again.

    Python raises KeyboardInterrupt wherever the main thread happens to be. In a callback of compiled code, a finalizer
    or a weak reference's callback it can only be printed, and the work goes on as if nobody had asked.

    The first KeyboardInterrupt is raised as ever. Outside the main thread signals are not seen, and the check does
    nothing.
    """
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.default_int_handler(number, frame)

    def heed() -> None:
        if asked.is_set():
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield heed
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield heed
    finally:
        signal.signal(signal.SIGINT, before)
