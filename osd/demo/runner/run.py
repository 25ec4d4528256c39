"""One run from beginning to end: turn the circle, watch, stop everything, leave what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from osd.demo.ctrl_c import ctrl_c
from osd.demo.runner.circle import Circle, StreamPlan, turning
from osd.demo.runner.finish import leave, show, tidy
from osd.demo.runner.offline import read_offline
from osd.demo.runner.onlooker import looking_on, stay
from osd.demo.runner.panel import watching
from osd.demo.runner.results import RunResults, collect
from osd.demo.runner.stream import StreamTrace


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
    """Do it. Ctrl-C ends the stream and what was started for it; what was measured until then is still reported.

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
    with turning(plan) as circle, looking_on(circle, console):
        interrupted = _go(circle, title, console, trace, offline)
        if interrupted:
            console.print("Stopping what was started …")
        return collect(circle, trace, title, interrupted=interrupted)


def _go(circle: Circle, title: str, console: Console, trace: StreamTrace, offline: bool) -> bool:
    """Serve everything, then the upper bound; whether somebody ended it early."""
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
