"""What a run leaves: the table at the end, summary, picture, and a report: one HTML file with everything in it, made
from a template beside this module."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from osd.demo.runner.measure import WINDOW, moving
from osd.demo.runner.panel import number
from osd.demo.runner.results import DEFINITIONS, RunResults, segment_facts
from storage.files.files import writing

ONLINE, FROZEN, OFFLINE, SWAP, INK, FAINT = "#0072B2", "#D55E00", "#000000", "#009E73", "#222222", "#BBBBBB"
"""Okabe and Ito's colours, which people with any colour vision tell apart."""
SIZE = (10.0, 4.6)
"""Inches."""
FEWEST = 10
"""Requests after which a curve begins: an average over one or two says nothing."""


def leave(results: RunResults, out: Path) -> dict[str, Path]:
    """Write everything into the run's folder; return the files by what they are. Raises StoreWriteFailed."""
    files = {
        "report": out / "report.html",
        "picture": out / "acceptance.png",
        "picture as SVG": out / "acceptance.svg",
        "all numbers": out / "summary.json",
    }
    with writing(out):
        figure = draw(results)
        figure.savefig(files["picture as SVG"], metadata={"Date": None})
        figure.savefig(files["picture"], dpi=150)
        files["report"].write_text(render(results), encoding="utf-8")
        numbers = json.dumps(results.summary(), indent=2, default=str, ensure_ascii=False)
        files["all numbers"].write_text(numbers + "\n", encoding="utf-8")
    return files


def tidy(data: Path, out: Path) -> None:
    """Remove the run's own store and the drafts distilled offline."""
    for folder in (data, out / "offline"):
        shutil.rmtree(folder, ignore_errors=True)


def show(results: RunResults, console: Console) -> None:
    """Print the final table and the totals."""
    facts = results.facts
    console.print(_table(results))
    speed = (
        f"{number(facts['tokens_per_second'], 0)} tokens/s, target alone {number(facts['tokens_per_second_target'], 0)}"
    )
    times = "" if facts["speedup_vs_target"] is None else f" ({facts['speedup_vs_target']:.2f} × on the same requests)"
    if facts["speedup_vs_plain"] is not None:
        times += f", {facts['speedup_vs_plain']:.2f} × osd without drafts"
    console.print(
        f"{facts['requests']} requests, {facts['failed']} failed, in {facts['seconds']:.0f} s. {speed}{times}."
    )
    console.print(
        f"{facts['published']} versions published, {facts['rejected']} rejected; longest pause for new weights "
        f"{number(facts['swap_pause_ms_max'])} ms, a round takes {number(facts['round_ms_median'], 1)} ms.",
        soft_wrap=True,
    )
    same = facts["lossless_checked"] - facts["lossless_failed"]
    if facts["lossless_checked"]:
        console.print(
            f"{same} of {facts['lossless_checked']} texts decoded again are exactly the target's own.", soft_wrap=True
        )
    for note in results.notes[:5]:
        console.print(f"[yellow]{escape(note)}[/yellow]", soft_wrap=True)


def _table(results: RunResults) -> Table:
    parts = {name: segment_facts(results.of(name)) for name in results.segments}
    offline = any("alpha_offline" in part for part in parts.values())
    table = Table(title="Token acceptance rate", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "requests", "frozen", "first\n50", "last\n50", "errors\ngone", "back\nafter", "tokens\n/s"):
        table.add_column(heading, justify="right" if heading else "left")
    if offline:
        table.add_column("offline", justify="right")
    for name, part in parts.items():
        gone = part["rejections_gone"]
        cells = [
            name, str(part["requests"]), number(part["alpha_frozen"]), number(part["alpha_first"]),
            f"[bold]{number(part['alpha_last'])}[/bold]", "–" if gone is None else f"{gone:.0%}",
            number(part["recovered_after"], 0), number(part["tokens_per_second_last"], 0),
        ]  # fmt: skip
        table.add_row(*cells, *([number(part.get("alpha_offline"))] if offline else []))
    return table


def render(results: RunResults) -> str:
    """Return the page."""
    picture = inline_svg(draw(results))
    return page_of(
        "osd.demo.runner", results=results, summary=results.summary(), picture=picture, definitions=DEFINITIONS
    )


def page_of(package: str, **facts: Any) -> str:
    """Return the report of a package's template."""
    environment = Environment(
        loader=PackageLoader(package, ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(rate=number, whole=_whole, times=_times, seconds=_seconds)
    return environment.get_template("report.html.jinja").render(**facts)


def inline_svg(figure: Any) -> Markup:
    """Return a picture as a part of a page."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return Markup(out.getvalue()[out.getvalue().index("<svg") :])


def _whole(value: Any) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _times(value: Any) -> str:
    return "–" if value is None else f"{value:.2f} ×"


def _seconds(value: Any) -> str:
    return "–" if value is None else f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min"


def draw(results: RunResults) -> Any:
    """Return the picture. Each curve is the average over the last WINDOW requests, whatever their domain."""
    from matplotlib.figure import Figure  # takes a second to load

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    begin = FEWEST if len(results.served) > FEWEST else 1
    requests = range(begin, len(results.served) + 1)
    online, frozen = (moving(results.served, whose)[begin - 1 :] for whose in ("online", "frozen"))
    axes.plot(requests, online, color=ONLINE, lw=2.2, label="draft that learns", zorder=4)
    axes.plot(requests, frozen, color=FROZEN, lw=1.8, ls=(0, (4, 2)), label="frozen draft", zorder=3)
    _mark_segments(axes, results)
    _mark_swaps(axes, results)
    _dress(axes, results)
    return figure


def _mark_segments(axes: Any, results: RunResults) -> None:
    start = 0
    for name in results.segments:
        served = results.of(name)
        if not served:
            continue
        end = start + len(served)
        if start:
            axes.axvline(start, color=INK, lw=1.0, alpha=0.6, zorder=2)
        axes.text((start + end) / 2, 1.015, name, ha="center", va="bottom", fontsize=11, color=INK)
        offline = segment_facts(served).get("alpha_offline")
        if offline is not None:
            label = "draft alone, distilled offline" if not start else "_"  # matplotlib leaves _ out of the legend
            axes.hlines(offline, start, end, color=OFFLINE, lw=1.4, ls=(0, (1, 1.5)), label=label, zorder=5)
        start = end


def _mark_swaps(axes: Any, results: RunResults) -> None:
    """Draw a tick at the foot for every swap."""
    where = [swap.index for swap in results.swaps]
    label = f"new weights taken ({len(where)})" if where else None
    axes.plot(where, [0.012] * len(where), ls="", marker="|", ms=9, mew=1.4, color=SWAP, label=label, zorder=3)


def _dress(axes: Any, results: RunResults) -> None:
    axes.set_xlim(0, max(1, len(results.served)))
    axes.set_ylim(0, 1)
    axes.set_xlabel("requests served")
    axes.set_ylabel(f"acceptance rate α, last {WINDOW} requests")
    axes.grid(axis="y", color=FAINT, lw=0.6, alpha=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.figure.legend(loc="outside lower center", ncols=4, frameon=False)
