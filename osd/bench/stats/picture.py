"""How the time of the questions grows with the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from osd.bench.stats.bench import Stage

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
BAR = 100
"""Milliseconds that no question should take."""


def draw(found: Mapping[str, Sequence[Stage]]) -> Figure:
    """A panel a database: the five slowest questions by name, the others in grey."""
    figure = Figure(figsize=(5.4 * len(found), 4.2), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
    for axes, (name, stages) in zip(panels, found.items(), strict=True):
        ranked = sorted(stages[-1].ms, key=lambda question: -stages[-1].ms[question])
        for at, question in reversed(list(enumerate(ranked))):
            named = at < len(COLOURS)
            axes.plot(
                [stage.rows / 1e6 for stage in stages], [stage.ms[question] for stage in stages], marker=".",
                color=COLOURS[at] if named else "#CCCCCC", lw=1.8 if named else 0.8, label=question if named else None,
            )  # fmt: skip
        axes.axhline(BAR, color="#555555", lw=0.8, ls="--")
        axes.set_title(name, loc="left", fontsize=11)
        axes.set_xlabel("rows of counters, millions")
        axes.set_yscale("log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.axes[0].set_ylabel("milliseconds")
    return figure


def save(figure: Figure, file: Path) -> None:
    """As PNG, SVG or PDF, by the file's name."""
    figure.savefig(file, dpi=150)
