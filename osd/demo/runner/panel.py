"""What people see while a run goes on: a live panel on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from osd.demo.runner.circle import Circle
from osd.demo.runner.measure import WINDOW, alpha, moving, tokens_per_second
from osd.demo.runner.stream import StreamTrace, Watch
from storage.records import DEFAULT_DRAFT, RunState

REFRESH_SECONDS = 0.5
LINE_SECONDS = 10.0
"""Seconds between two plain lines."""
BARS = "▁▂▃▄▅▆▇█"


def number(value: float | None, digits: int = 2) -> str:
    """Return a number for people; a dash where there is none yet."""
    return "–" if value is None else f"{value:.{digits}f}"


def sparkline(curve: Sequence[float], width: int) -> str:
    """Return a curve of rates in [0, 1] as blocks, the last value of each stretch; at most ``width`` characters."""
    stretches = min(width, len(curve))
    ends = [(i + 1) * len(curve) // stretches - 1 for i in range(stretches)]
    return "".join(BARS[min(len(BARS) - 1, int(curve[end] * len(BARS)))] for end in ends)


def describe(circle: Circle, trace: StreamTrace, segment: str) -> str:
    """Return the numbers of this moment in one line."""
    last, (published, _) = trace.served[-WINDOW:], _versions(circle)
    parts = [
        f"{len(trace.served)} of {trace.total} requests",
        segment,
        f"acceptance {number(alpha(last, 'online'))}",
        f"frozen {number(alpha(last, 'frozen'))}",
        f"{number(tokens_per_second(last), 0)} tokens/s",
        f"target alone {number(circle.alone.tokens_per_second, 0)}",
        f"{published} versions published",
        f"{trace.seconds:.0f} s",
    ]
    return ", ".join(parts)


def face(circle: Circle, trace: StreamTrace, segment: str, title: str, width: int) -> RenderableType:
    """Return the panel."""
    last, (published, rejected), alone = trace.served[-WINDOW:], _versions(circle), circle.alone
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim")
    rows.add_column()
    progress, done = Table.grid(padding=(0, 1)), len(trace.served)
    bar = ProgressBar(total=trace.total, completed=done, width=max(10, width - 62))
    progress.add_row(bar, f"{done} of {trace.total} requests", Text(f"{trace.seconds:.0f} s", "dim"))
    rows.add_row("stream", progress)
    names = [each.name for each in circle.plan.segments]
    rows.add_row("domain", f"[bold]{segment}[/bold]  ({names.index(segment) + 1} of {len(names)})")
    online, frozen = number(alpha(last, "online")), number(alpha(last, "frozen"))
    rates = f"[bold blue]{online}[/bold blue] learning    [yellow]{frozen}[/yellow] frozen"
    rows.add_row("acceptance", f"{rates}    [dim]last {WINDOW} requests[/dim]")
    curve = max(10, width - 32)
    rows.add_row("  learning", Text(sparkline(moving(trace.served, "online"), curve), "blue"))
    rows.add_row("  frozen", Text(sparkline(moving(trace.served, "frozen"), curve), "yellow"))
    times = "" if alone.speedup is None else f"    [bold]{alone.speedup:.1f} ×[/bold]"
    speed, theirs = number(tokens_per_second(last), 0), number(alone.tokens_per_second, 0)
    rows.add_row("tokens/s", f"{speed} osd    {theirs} target alone{times}")
    version = circle.engine.draft_version
    rows.add_row("versions", f"{published} published, {rejected} rejected    [dim]serving[/dim] {version}")
    checked = len(alone.checks)
    rows.add_row("lossless", f"{checked - alone.failed} of {checked} texts exactly the target's" if checked else "–")
    return Panel(Group(rows), title=title, title_align="left", border_style="dim", padding=(0, 1))


def _versions(circle: Circle) -> tuple[int, int]:
    """Ask the database how many training runs were published and rejected."""
    states = [run.state for run in circle.store.runs.list(DEFAULT_DRAFT, limit=1 << 20)]
    return states.count(RunState.PUBLISHED), states.count(RunState.REJECTED)


@contextmanager
def watching(circle: Circle, title: str, console: Console) -> Iterator[Watch]:
    """Yield a watch for a stream that shows it on the console for as long as the block runs."""
    if not console.is_terminal:

        def say(trace: StreamTrace, segment: str) -> None:
            console.print(describe(circle, trace, segment), highlight=False, soft_wrap=True)

        yield every(LINE_SECONDS, say)
        return
    with Live(console=console, auto_refresh=False, transient=False) as live:
        yield every(
            REFRESH_SECONDS,
            lambda trace, segment: live.update(face(circle, trace, segment, title, console.width), refresh=True),
        )


def every(seconds: float, look: Callable[[StreamTrace, str], None]) -> Watch:
    """Pass calls on when the last one was so long ago, and once when everything has been served."""
    last, is_over = -seconds, False

    def watch(trace: StreamTrace, segment: str) -> None:
        nonlocal last, is_over
        ends_now = len(trace.served) == trace.total and not is_over
        if ends_now or (not is_over and time.monotonic() - last >= seconds):
            look(trace, segment)
            last, is_over = time.monotonic(), ends_now

    return watch
