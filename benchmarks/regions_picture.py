"""The picture of `python -m benchmarks regions`: a row of panels for each kind of text, a column for each costs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.figures import PaperFigure
from osd.bench.harness.picture import COLOURS, FAINT, GREY, INK, dress, make_panels

KINDS = {
    "narrow": "made texts: tokens alike", "wide": "made texts: tokens sure or hopeless",
    "hidden": "the same, and only a head can tell", "": "recorded pairs",
}  # fmt: skip
DRAWN = ("goodput", "specdecpp", "confidence", "gammatune_plus", "analytic", "moving_average")
"""Rules with a colour; the others are grey."""
DASHED = {"goodput with head": "goodput", "specdecpp by costs": "specdecpp"}
"""Rules with the colour of another."""
LINES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
LOW, HIGH = 0.58, 1.24
"""Ends of the axis; what is below is not drawn."""
TIE = 0.01
Own = Mapping[str, PaperFigure]
"""Ratios by rule."""


def draw_regions(ratios: Mapping[tuple[str, str, float], Own]) -> Figure:
    """Draw every rule's speed ÷ the best fixed length's over the mean acceptance, by costs, kind of text and mean.

    A strip below has the colour of the rule to take there: the fastest, or goodput within :data:`TIE` of it."""
    costs = list(dict.fromkeys(place[0] for place in ratios))
    kinds = [kind for kind in KINDS if any(kind_of(place[1]) == kind for place in ratios)]
    rules = list(dict.fromkeys(rule for own in ratios.values() for rule in own))
    figure, panels = make_panels(len(costs) * len(kinds), width=4.2, height=2.7, across=len(costs), sharey=True)
    for number, axes in enumerate(panels):
        kind, table = kinds[number // len(costs)], costs[number % len(costs)]
        own = {p: each for p, each in ratios.items() if p[0] == table and kind_of(p[1]) == kind}
        _panel(axes, {place[1:]: each for place, each in own.items()}, rules, joined=bool(kind))
        axes.set_title(f"{KINDS[kind]}\n{table}", fontsize=10, color=INK)
        if not number % len(costs):
            axes.set_ylabel("speed ÷ best fixed length", fontsize=10)
        if number >= len(costs) * (len(kinds) - 1):
            axes.set_xlabel("mean acceptance of a drafted token", fontsize=10)
    handles = [Line2D([], [], label=rule, **_style(rule, rules)) for rule in rules]
    figure.legend(handles=handles, loc="outside upper center", ncols=2 * len(costs), frameon=False, fontsize=10)
    return figure


def kind_of(texts: str) -> str:
    """Return the key of :data:`KINDS`: the name of made texts, nothing for recorded ones."""
    return texts if texts in KINDS else ""


def _panel(axes: Axes, places: Mapping[tuple[str, float], Own], rules: list[str], *, joined: bool) -> None:
    axes.axhline(1, color=INK, lw=0.8)
    ordered = sorted(places, key=lambda place: place[1])
    for rule in sorted(rules, key=lambda rule: rule == "goodput" or -(rule not in DRAWN)):
        known = [(mean, places[name, mean][rule]) for name, mean in ordered if rule in places[name, mean]]
        style = _style(rule, rules) | ({} if joined else {"ls": "none"})
        axes.plot([mean for mean, _ in known], [found.value for _, found in known], **style)
    means = [mean for _, mean in ordered]
    edges = [0.0, *((a + b) / 2 for a, b in pairwise(means)), 0.97]
    for (left, right), place in zip(pairwise(edges), ordered, strict=True):
        own = places[place]
        best = max(own, key=lambda rule: own[rule].value + {"goodput": TIE, "goodput with head": TIE / 2}.get(rule, 0))
        axes.barh(LOW + 0.012, right - left, 0.024, left, color=_style(best, rules)["color"], lw=0)
    axes.set(xlim=(0.0, 0.97), ylim=(LOW, HIGH))
    axes.grid(color=FAINT, lw=0.6, alpha=0.6)
    dress(axes)


def _style(rule: str, rules: list[str]) -> dict[str, Any]:
    if rule in DASHED:
        return _style(DASHED[rule], rules) | {"lw": 1.6, "ls": "--", "marker": "D", "ms": 4, "mfc": "white"}
    if rule in DRAWN:
        thick = {"lw": 2.6, "ms": 6, "zorder": 4} if rule == "goodput" else {"lw": 1.6, "ms": 4.5, "zorder": 3}
        return {"color": COLOURS[DRAWN.index(rule)], "marker": "o", **thick}
    others = [each for each in rules if each not in DRAWN and each not in DASHED]
    return {"color": GREY, "lw": 1.0, "ms": 3, "marker": ".", "ls": LINES[others.index(rule) % len(LINES)]}
