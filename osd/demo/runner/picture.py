"""Acceptance over requests as a picture: online against frozen, swaps and changes of domain marked."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from osd.demo.runner.measure import WINDOW, moving
from osd.demo.runner.results import RunResults, segment_facts

ONLINE, FROZEN, OFFLINE, SWAP, INK, FAINT = "#0072B2", "#D55E00", "#000000", "#009E73", "#222222", "#BBBBBB"
"""Okabe and Ito's colours, which people with any colour vision tell apart."""
SIZE = (10.0, 4.6)
"""Inches."""
FEWEST = 10
"""Requests after which a curve begins: an average over one or two says nothing."""


def draw(results: RunResults) -> Figure:
    """The picture. Each curve is the average over the last WINDOW requests, whatever their domain."""
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


def save(figure: Figure, folder: Path, name: str = "acceptance") -> tuple[Path, Path]:
    """Write it as SVG and as PNG."""
    svg, png = folder / f"{name}.svg", folder / f"{name}.png"
    figure.savefig(svg, metadata={"Date": None})
    figure.savefig(png, dpi=150)
    return svg, png


def _mark_segments(axes: Axes, results: RunResults) -> None:
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


def _mark_swaps(axes: Axes, results: RunResults) -> None:
    """A tick at the foot for every swap."""
    where = [swap.index for swap in results.swaps]
    label = f"new weights taken ({len(where)})" if where else None
    axes.plot(where, [0.012] * len(where), ls="", marker="|", ms=9, mew=1.4, color=SWAP, label=label, zorder=3)


def _dress(axes: Axes, results: RunResults) -> None:
    axes.set_xlim(0, max(1, len(results.served)))
    axes.set_ylim(0, 1)
    axes.set_xlabel("requests served")
    axes.set_ylabel(f"acceptance rate α, last {WINDOW} requests")
    axes.grid(axis="y", color=FAINT, lw=0.6, alpha=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.figure.legend(loc="outside lower center", ncols=4, frameon=False)
