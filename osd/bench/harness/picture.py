"""Colours, panels and axes that all pictures share. matplotlib takes a second to load: import this where one draws."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, INK, GREY, FAINT = "#0072B2", "#D55E00", "#222222", "#8A8A8A", "#CCCCCC"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which people with any colour vision tell apart."""
COLUMNS = 3
"""Panels beside each other at most."""


def make_panels(
    count: int, width: float, height: float, sharey: bool = False, across: int = COLUMNS
) -> tuple[Figure, list[Axes]]:
    """Make ``count`` panels in rows of ``across``; ``width`` and ``height`` of one in inches."""
    across = min(across, count)
    down = -(-count // across)
    figure = Figure(figsize=(width * across + 1.2, height * down + 1.0), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharey=sharey).flatten().tolist()
    for spare in panels[count:]:
        spare.remove()
    return figure, panels[:count]


def dress(axes: Axes) -> None:
    """Put the grid behind what is drawn, and take the frame above and on the right away."""
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Write a picture as SVG and as PNG; return the PNG."""
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", dpi=150)
    return folder / f"{name}.png"
