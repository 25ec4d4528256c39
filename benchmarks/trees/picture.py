"""Three pictures: every method on every set; adaptive against frozen along a text; temperature, top-p and corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.trees.methods import ALONE, BY_NAME, DRAFT, FROZEN, GREEDY, MCTS, THEIRS
from osd.bench.harness.picture import BLUE, FAINT, GREY, INK, ORANGE, dress, make_panels

SHOWN = {GREEDY.name: "greedy search", FROZEN.name: "150 searches, frozen", MCTS.name: "150 searches, adaptive"}
MARKS = {GREEDY.name: ("s", GREY), FROZEN.name: ("o", ORANGE), MCTS.name: ("D", BLUE)}
PARTS = {"accept_length": "lengths", "tokens_per_s": "rates"}
LABELS = {
    "accept_length": "tokens a pass of the target (accept length); every tree as deep as it may be",
    "tokens_per_s": "tokens a second; the controller chooses. Dotted: the target alone, dashed: transformers' look-up",
}
BASES = (ALONE.name, THEIRS.name, DRAFT.name)


def draw_methods(line: Mapping[str, Any]) -> Figure:
    """Draw a panel a set: bars of accept length above, of tokens a second below, with the middle half of prompts."""
    sets = line["sets"]
    figure = Figure(figsize=(max(2.6 * len(sets), 4.8) + 2.4, 9.6), layout="constrained")
    halves: Any = figure.subfigures(2, 1)
    for part, (what, spread) in zip(halves, PARTS.items(), strict=True):
        row = part.subplots(1, len(sets), squeeze=False, sharey=True, sharex=True)[0]
        for axes, (name, own) in zip(row, sets.items(), strict=True):
            _bars(axes, own, what, spread)
            axes.set_title(name, fontsize=12)
            if what == "tokens_per_s":
                axes.axvline(own[ALONE.name][what], color=INK, lw=1.1, ls=(0, (1, 1.5)))
                axes.axvline(own[THEIRS.name][what], color=ORANGE, lw=1.1, ls=(0, (4, 2)))
        part.supxlabel(fill(LABELS[what], int(14 * figure.get_figwidth())), fontsize=11)
    return figure


def _bars(axes: Axes, own: Mapping[str, Any], what: str, spread: str) -> None:
    names = [name for name in BY_NAME if name in own][::-1]
    for place, name in enumerate(names):
        colour = GREY if name in BASES else BLUE
        axes.barh(place, own[name][what], height=0.7, color=colour, alpha=0.8)
        axes.plot(own[name][spread], [place, place], color=INK, lw=1.4, solid_capstyle="butt")
        digits = 2 if what == "accept_length" else 0
        axes.text(
            max(own[name][spread]), place, f" {own[name][what]:.{digits}f}", va="center", fontsize=8, color=INK
        )  # fmt: skip
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names], fontsize=9.5)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(0, 1.22 * max(max(axes.get_xlim()[1] / 1.22, *own[name][spread]) for name in names))
    axes.grid(axis="x", color=FAINT, lw=0.6, alpha=0.6)
    dress(axes)


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
