"""What the demo on a real model leaves: a page, which shows the run while it goes on, picture, table, summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from osd.demo.real.model import HUB
from osd.demo.real.turns import RealTrace, figures
from osd.demo.runner.panel import number
from osd.demo.runner.report import FAINT, FROZEN, ONLINE, SIZE, SWAP, inline_svg, page_of
from osd.demo.runner.results import rounded
from storage.files.files import writing

RECENT = 6
"""Turns that the figures of this moment are of."""
COLUMNS = {
    "answers": ("answers", 0), "turns": ("turns", 0), "acceptance": ("accepted\nshare", 2),
    "tokens_a_round": ("tokens\na round", 2), "drafted_rate": ("tokens/s,\ndrafts", 1),
    "plain_rate": ("tokens/s,\nwithout", 1), "gain": ("gain", 2),
}  # fmt: skip
"""Columns of the table of quarters: heading and decimals."""


class Page:
    """report.html: as long as the run goes on it loads itself anew every two seconds."""

    def __init__(self, out: Path) -> None:
        self.path, self._drawn, self._picture = out / "report.html", -1, ""

    def write(self, trace: RealTrace, summary: Mapping[str, Any] | None = None, steps: str = "") -> None:
        """Write the page as things are; with the summary, as it stays. Raises StoreWriteFailed."""
        if self._drawn != len(trace.turns):
            self._drawn, self._picture = len(trace.turns), inline_svg(draw_gain(trace))
        text = page_of(
            "osd.demo.real", trace=trace, s=summary or summarise(trace), live=summary is None, picture=self._picture,
            steps=steps, columns=COLUMNS, number=number,
        )  # fmt: skip
        aside = self.path.with_suffix(".part")
        with writing(self.path):
            aside.write_text(text, encoding="utf-8")
            aside.replace(self.path)


def summarise(trace: RealTrace, source: str | None = None) -> dict[str, Any]:
    """Return the figures of a run: as a whole, now, and by quarter of its time."""
    quarters = [trace.quarter(n) for n in range(4)]
    rows = [rounded({"answers": turns[-1].answers, **figures(turns)}) if turns else None for turns in quarters]
    rate = trace.gathered_tokens / trace.gathered_seconds if trace.gathered_seconds else None
    facts = rounded({"seconds": trace.now, "gathered_rate": rate})
    return facts | {
        "model": HUB, "source": source, "interrupted": trace.interrupted, "answers": trace.answers,
        "published": trace.published, "rejected": trace.rejected, "lossless_checked": len(trace.turns),
        "lossless_failed": sum(not turn.same for turn in trace.turns), "now": rounded(figures(trace.turns[-RECENT:])),
        "quarters": rows, "gain_last_quarter": rows[3] and rows[3]["gain"],
    }  # fmt: skip


def leave_gain(trace: RealTrace, summary: Mapping[str, Any], steps: str, out: Path) -> None:
    """Write everything into the run's folder. Raises StoreWriteFailed."""
    Page(out).write(trace, summary, steps)
    with writing(out):
        draw_gain(trace).savefig(out / "gain.png", dpi=150)
        numbers = {**summary, "turns": [asdict(turn) for turn in trace.turns], "swaps": trace.swaps}
        (out / "summary.json").write_text(json.dumps(numbers, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def show_gain(summary: Mapping[str, Any], out: Path, console: Console) -> None:
    """Print the table, the totals and where the files are."""
    table = Table(title="One row, in turns with the same engine without drafts", title_justify="left",
        box=box.SIMPLE_HEAD, pad_edge=False)  # fmt: skip
    for heading, _ in (("quarter", 0), *COLUMNS.values()):
        table.add_column(heading, justify="right")
    for index, row in enumerate(summary["quarters"], start=1):
        table.add_row(str(index), *(number(row and row[name], digits) for name, (_, digits) in COLUMNS.items()))
    console.print(table)
    same = summary["lossless_checked"] - summary["lossless_failed"]
    console.print(
        f"{summary['answers']} answers in {summary['seconds']:.0f} s, gathered at eight rows "
        f"({number(summary['gathered_rate'], 0)} tokens/s). {summary['published']} versions published, "
        f"{summary['rejected']} rejected. {same} of {summary['lossless_checked']} texts are the same without drafts.",
        soft_wrap=True,
    )
    for what, name in {"report": "report.html", "picture": "gain.png", "all numbers": "summary.json"}.items():
        console.print(f"[dim]{what}:[/dim] {out / name}", soft_wrap=True)


def next_steps(learning: Mapping[str, Mapping[str, Any]], heads: str) -> str:
    """Say what to do with a model of one's own: the settings of this run, and commands. ``heads``: their kind."""
    settings = [
        text
        for name, section in learning.items()
        for text in (f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items()))
    ]
    commands = (
        f"osd drafts new default --kind {heads} --target YOUR_MODEL",
        "osd serve --target YOUR_MODEL --draft default        # answers on port 8000, and records",
        "osd trainer                                          # in another terminal: learns from the answers",
        "osd stats acceptance --by version                    # is it better?",
    )
    return "\n".join(["With a model of your own, put this into osd.toml:", "", *settings, "", "and run", "", *commands])


def draw_gain(trace: RealTrace) -> Any:
    """Return the picture: tokens a second at one row with drafts and without, and beside it one ÷ the other."""
    from matplotlib.figure import Figure  # takes a second to load

    figure = Figure(figsize=SIZE, layout="constrained")
    speed, gain = figure.subplots(1, 2)
    minutes = [turn.at / 60 for turn in trace.turns]
    moving = [figures(trace.turns[max(0, n - RECENT) : n]) for n in range(1, len(minutes) + 1)]
    single = [turn.plain_seconds / turn.seconds for turn in trace.turns]
    speed.plot(minutes, [m["drafted_rate"] for m in moving], color=ONLINE, lw=2.2, label="with drafts")
    speed.plot(minutes, [m["plain_rate"] for m in moving], color=FROZEN, lw=1.8, ls=(0, (4, 2)), label="without")
    gain.plot(minutes, single, ls="", marker="o", ms=4, color=ONLINE, alpha=0.4, label="gain of one question")
    gain.plot(minutes, [m["gain"] for m in moving], color=ONLINE, lw=2.2, label=f"gain of the last {RECENT}")
    gain.axhline(1.0, color=FROZEN, lw=1.4, ls=(0, (4, 2)))
    where = [at / 60 for at, _ in trace.swaps]
    foot = [min([0.8, *single])] * len(where)
    gain.plot(where, foot, ls="", marker="|", ms=9, mew=1.4, color=SWAP, label="new heads taken" if where else None)
    speed.set_ylim(0, 1.1 * max([1.0, *(m[name] for m in moving for name in ("drafted_rate", "plain_rate"))]))
    for axes, label in ((speed, f"tokens/s at one row, last {RECENT} questions"), (gain, "with drafts ÷ without")):
        axes.set(xlim=(0, max(1.0, trace.seconds / 60, *minutes)), xlabel="minutes", ylabel=label)
        axes.grid(axis="y", color=FAINT, lw=0.6, alpha=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    return figure
