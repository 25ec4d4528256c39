"""Two pictures: adaptive against frozen along a text; temperature, top-p and corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.trees.methods import FROZEN, GREEDY, MCTS
from osd.bench.harness.picture import BLUE, FAINT, GREY, ORANGE, dress, make_panels

SHOWN = {GREEDY.name: "greedy search", FROZEN.name: "150 searches, frozen", MCTS.name: "150 searches, adaptive"}
MARKS = {GREEDY.name: ("s", GREY), FROZEN.name: ("o", ORANGE), MCTS.name: ("D", BLUE)}


def draw_context(line: Mapping[str, Any]) -> Figure:
    """Draw accept length by length of context (the paper's Figure 4a)."""
    figure, (axes,) = make_panels(1, width=5.6, height=3.4)
    _curves(axes, line["by_context"])
    axes.set_xlabel("tokens of text before the pass, prompt included", fontsize=11)
    axes.set_ylabel("accept length", fontsize=11)
    axes.legend(frameon=False, fontsize=10)
    return figure


def draw_sensitivity(line: Mapping[str, Any]) -> Figure:
    """Draw accept length by temperature, by top-p (Figures 4b and 4c) and by share of the corpus (Table 2)."""
    figure, found = make_panels(3, width=3.9, height=3.2, sharey=True)
    tokens = line["corpus"]["tokens"]
    for axes, key, label in zip(
        found, ("by_temperature", "by_top_p", "by_corpus"),
        ("temperature", "top-p, at temperature 1", f"share of the corpus ({tokens:,} tokens)"), strict=True,
    ):  # fmt: skip
        _curves(axes, line[key])
        axes.set_xlabel(label, fontsize=11)
    found[2].set_xscale("symlog", linthresh=0.01)
    shares = [x for x, _ in line["by_corpus"][MCTS.name]]
    found[2].set_xticks(shares, [f"{share:g}" for share in shares])
    found[2].set_xticks([], minor=True)
    found[2].set_xlim(-0.001, 1.2)
    found[0].set_ylabel("accept length", fontsize=11)
    figure.legend(
        *found[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=10
    )
    return figure


def _curves(axes: Axes, curves: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    for name, curve in curves.items():
        mark, colour = MARKS[name]
        axes.plot(
            [x for x, _ in curve], [y for _, y in curve], marker=mark, color=colour, lw=1.6, ms=5.5, label=SHOWN[name]
        )  # fmt: skip
    highest = max((y for curve in curves.values() for _, y in curve), default=2.0)
    axes.set_ylim(1.0, max(axes.get_ylim()[1], highest + 0.05 * (highest - 1)))  # panels that share it only raise it
    axes.grid(color=FAINT, lw=0.6, alpha=0.6)
    dress(axes)
