"""What people see while a run goes on: a live panel on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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
"""Between two plain lines."""
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Glance:
    """The numbers of one moment."""

    done: int
    total: int
    segment: str
    place: str
    """Which of how many segments: ``2 of 4``."""
    seconds: float
    online: float | None
    frozen: float | None
    speed: float | None
    alone: float | None
    """Tokens a second: osd over the last requests, the target alone over those that were checked."""
    speedup: float | None
    published: int
    rejected: int
    version: str
    checked: int
    differing: int
    online_curve: Sequence[float]
    frozen_curve: Sequence[float]

    def line(self) -> str:
        """In one line."""
        parts = [
            f"{self.done} of {self.total} requests",
            self.segment,
            f"acceptance {number(self.online)}",
            f"frozen {number(self.frozen)}",
            f"{number(self.speed, 0)} tokens/s",
            f"target alone {number(self.alone, 0)}",
            f"{self.published} versions published",
            f"{self.seconds:.0f} s",
        ]
        return ", ".join(parts)


def number(value: float | None, digits: int = 2) -> str:
    """A number for people; a dash where there is none yet."""
    return "–" if value is None else f"{value:.{digits}f}"


def sparkline(curve: Sequence[float], width: int) -> str:
    """A curve of rates in [0, 1] as blocks, the last value of each stretch; at most ``width`` characters."""
    stretches = min(width, len(curve))
    ends = [(i + 1) * len(curve) // stretches - 1 for i in range(stretches)]
    return "".join(BARS[min(len(BARS) - 1, int(curve[end] * len(BARS)))] for end in ends)


def glance(circle: Circle, trace: StreamTrace, segment: str, counts: tuple[int, int]) -> Glance:
    """Look at a run. ``counts``: runs published and rejected."""
    names = [s.name for s in circle.plan.segments]
    last = trace.served[-WINDOW:]
    return Glance(
        done=len(trace.served), total=trace.total, segment=segment,
        place=f"{names.index(segment) + 1} of {len(names)}", seconds=trace.seconds, online=alpha(last, "online"),
        frozen=alpha(last, "frozen"), speed=tokens_per_second(last), alone=circle.alone.tokens_per_second,
        speedup=circle.alone.speedup, published=counts[0], rejected=counts[1], version=circle.engine.draft_version,
        checked=len(circle.alone.checks), differing=circle.alone.failed,
        online_curve=moving(trace.served, "online"), frozen_curve=moving(trace.served, "frozen"),
    )  # fmt: skip


def face(now: Glance, title: str, width: int) -> RenderableType:
    """The panel."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim")
    rows.add_column()
    progress = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=now.total, completed=now.done, width=max(10, width - 62))
    progress.add_row(bar, f"{now.done} of {now.total} requests", Text(f"{now.seconds:.0f} s", "dim"))
    rows.add_row("stream", progress)
    rows.add_row("domain", f"[bold]{now.segment}[/bold]  ({now.place})")
    rates = f"[bold blue]{number(now.online)}[/bold blue] learning    [yellow]{number(now.frozen)}[/yellow] frozen"
    rows.add_row("acceptance", f"{rates}    [dim]last {WINDOW} requests[/dim]")
    curve = max(10, width - 32)
    rows.add_row("  learning", Text(sparkline(now.online_curve, curve), "blue"))
    rows.add_row("  frozen", Text(sparkline(now.frozen_curve, curve), "yellow"))
    times = "" if now.speedup is None else f"    [bold]{now.speedup:.1f} ×[/bold]"
    rows.add_row("tokens/s", f"{number(now.speed, 0)} osd    {number(now.alone, 0)} target alone{times}")
    rows.add_row("versions", f"{now.published} published, {now.rejected} rejected    [dim]serving[/dim] {now.version}")
    same = f"{now.checked - now.differing} of {now.checked} texts exactly the target's"
    rows.add_row("lossless", same if now.checked else "–")
    return Panel(Group(rows), title=title, title_align="left", border_style="dim", padding=(0, 1))


@contextmanager
def watching(circle: Circle, title: str, console: Console) -> Iterator[Watch]:
    """A watch for a stream that shows it on the console for as long as the block runs."""
    looks = Looks(circle)
    if not console.is_terminal:
        yield every(
            LINE_SECONDS,
            lambda trace, segment: console.print(looks(trace, segment).line(), highlight=False, soft_wrap=True),
        )
        return
    with Live(console=console, auto_refresh=False, transient=False) as live:
        yield every(
            REFRESH_SECONDS,
            lambda trace, segment: live.update(face(looks(trace, segment), title, console.width), refresh=True),
        )


class Looks:
    """Takes glances, and asks the database how many versions there are."""

    def __init__(self, circle: Circle) -> None:
        self._circle = circle

    def __call__(self, trace: StreamTrace, segment: str) -> Glance:
        """The numbers of this moment."""
        states = [run.state for run in self._circle.store.runs.list(DEFAULT_DRAFT, limit=1 << 20)]
        counts = states.count(RunState.PUBLISHED), states.count(RunState.REJECTED)
        return glance(self._circle, trace, segment, counts)


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
