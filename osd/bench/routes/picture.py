"""Acceptance over the stream, a panel a domain: a single draft, drafts of their own, the frozen one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from osd.bench.routes.result import ArmResult

WINDOW = 50
"""Requests of a domain over which acceptance is averaged."""
STYLES = {
    "routed": ("#0072B2", "-", "a draft for each route"),
    "routed_lora": ("#009E73", "-", "an adapter for each route"),
    "single": ("#D55E00", "-", "one draft for everything"),
    "frozen": ("#555555", (0, (4, 2)), "frozen draft"),
}
"""Okabe and Ito's colours, which people with any colour vision tell apart."""


def draw(arms: Mapping[str, ArmResult], domains: Sequence[str], order: str) -> Figure:
    """The picture."""
    columns = min(2, len(domains))
    rows = -(-len(domains) // columns)
    figure = Figure(figsize=(5.2 * columns, 2.9 * rows + 0.7), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True, sharex=order != "mixed")
    for axes, name in zip(panels.flat, domains, strict=False):
        _panel(axes, arms, name, order)
    for axes in panels.flat[len(domains) :]:
        axes.set_visible(False)
    for axes in panels.flat[max(0, len(domains) - columns) : len(domains)]:  # the lowest of each column
        axes.set_xlabel("requests of the whole stream")
        axes.tick_params(labelbottom=True)
    for axes in panels[:, 0]:
        axes.set_ylabel(f"acceptance rate α, last {WINDOW}")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def save(figure: Figure, folder: Path) -> tuple[Path, Path]:
    """Write it as SVG and as PNG."""
    svg, png = folder / "routes.svg", folder / "routes.png"
    figure.savefig(svg, metadata={"Date": None})
    figure.savefig(png, dpi=150)
    return svg, png


def _panel(axes: Axes, arms: Mapping[str, ArmResult], name: str, order: str) -> None:
    for arm, (colour, style, label) in STYLES.items():
        of = next(iter(arms.values())) if arm == "frozen" else arms.get(arm)
        if of is None:
            continue
        where = [i for i, one in enumerate(of.seen, start=1) if one.domain == name]
        mine = of.of(name)
        hits = [one.frozen_hits if arm == "frozen" else one.hits for one in mine]
        curve = _moving(hits, [one.emitted for one in mine])
        axes.plot(where, curve, color=colour, ls=style, lw=2.0, label=label)
    axes.set_title(name, fontsize=11, loc="left")
    axes.set_ylim(0, 1)
    axes.grid(axis="y", color="#BBBBBB", lw=0.6, alpha=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _moving(hits: Sequence[int], emitted: Sequence[int]) -> list[float]:
    above, below = np.cumsum([0, *hits]), np.cumsum([0, *emitted])
    begins = [max(0, end - WINDOW) for end in range(1, len(hits) + 1)]
    return [
        float((above[end] - above[begin]) / max(1, below[end] - below[begin]))
        for end, begin in enumerate(begins, start=1)
    ]
