"""What people see while heads learn: a live panel on a terminal, plain lines elsewhere, and a page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from osd.demo.real.report import Page, summarise
from osd.demo.real.turns import Look, RealTrace
from osd.demo.runner.panel import LINE_SECONDS, REFRESH_SECONDS, number, sparkline

PAGE_SECONDS = 1.0
HIGHEST = 2.5
"""The gain that fills a bar of the curve."""


@contextmanager
def watching_gain(trace: RealTrace, out: Path, console: Console, heed: Callable[[], None]) -> Iterator[Look]:
    """Yield what shows the run for as long as the block runs; ``heed`` is called each time, too."""
    page = Page(out)
    console.print(f"In a browser: {page.path.resolve().as_uri()}", highlight=False, soft_wrap=True)
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:

        def show() -> None:
            if live is None:
                console.print(", ".join(lines(trace).values()), highlight=False, soft_wrap=True)
            else:
                live.update(face(trace, console.width), refresh=True)

        shows = _seldom(LINE_SECONDS if live is None else REFRESH_SECONDS, show)
        writes = _seldom(PAGE_SECONDS, lambda: page.write(trace))

        def look() -> None:
            heed()
            shows()
            writes()

        yield look


def _seldom(seconds: float, call: Callable[[], None]) -> Callable[[], None]:
    """Pass calls on when the last one was so long ago."""
    last = -seconds

    def maybe() -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            call()
            last = time.monotonic()

    return maybe


def lines(trace: RealTrace) -> dict[str, str]:
    """Return the numbers of this moment, each with its heading."""
    facts = summarise(trace)
    now, same = facts["now"], facts["lossless_checked"] - facts["lossless_failed"]
    speed = f"{number(now['drafted_rate'], 1)} with drafts, {number(now['plain_rate'], 1)} without"
    return {
        "time": f"{trace.now:.0f} of {trace.seconds:.0f} s",
        "now": trace.doing,
        "learned from": f"{trace.answers} answers ({trace.domain}), {number(facts['gathered_rate'], 0)} tokens/s",
        "tokens/s": f"one row: {speed}, gain {number(now['gain'])} ×",
        "accepted": f"{number(now['acceptance'])} accepted, {number(now['tokens_a_round'])} tokens a round",
        "versions": f"{trace.published} versions published, {trace.rejected} rejected",
        "lossless": f"{same} of {facts['lossless_checked']} texts the same without drafts",
    }


def face(trace: RealTrace, width: int) -> RenderableType:
    """Return the panel."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    for heading, text in lines(trace).items():
        rows.add_row(heading, text)
    bars = [min(0.99, turn.plain_seconds / turn.seconds / HIGHEST) for turn in trace.turns]
    rows.add_row("gain", Text(sparkline(bars, max(10, width - 24)) if bars else "–", "green"))
    rows.add_row("question", Text(trace.question, "dim"))
    rows.add_row("answer", Text.assemble(*((piece, "bold green" if marked else "") for piece, marked in trace.spoken)))
    title = "osd demo: heads of random weights learn; drafted and accepted tokens are green"
    return Panel(rows, title=title, title_align="left", border_style="dim", padding=(0, 1))
