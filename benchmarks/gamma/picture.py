"""The picture: throughput by controller and data set."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.gamma.plan import ALONE, REFERENCES, Contested, Entrant
from benchmarks.gamma.scene import Scene
from osd.bench.harness.picture import BLUE, FAINT, GREY, INK, ORANGE, dress, make_panels

BARS = (
    "Controllers: mean over initial gammas, ± a standard deviation, dots at least and most. "
    "Grey, and where no initial gammas were swept: median and range over turns."
)
OTHERS = {name.replace("assisted_", "transformers ").replace("_", " "): each for name, each in REFERENCES.items()}


def draw_throughput(scenes: Mapping[str, Scene], plan: Contested) -> Figure:
    """GammaTune's Figure 1: a panel a data set, a bar a contender, tokens a second.

    A controller's bar is its mean over the initial gammas, with a standard deviation to either side and dots at the
    least and the most; where none were swept it is its throughput, with the range over turns.
    """
    others = {name: each for name, each in OTHERS.items() if any(each in scene.of for scene in scenes.values())}
    height = 1.2 + 0.27 * (len(plan.controllers) + len(others))
    figure, panels = make_panels(len(scenes), width=4.3, height=height, sharey=True)
    for axes, (name, scene) in zip(panels, scenes.items(), strict=True):
        _bars(axes, scene, plan, others)
        _mark_bests(axes, scene)
        axes.set_title(f"{name}  (T={scene.setting.temperature:g}, batch {scene.setting.batch})", fontsize=11)
    figure.supxlabel("tokens a second", fontsize=11)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=10,
        title=fill(BARS, int(11 * figure.get_figwidth())),
    )  # fmt: skip
    return figure


def _bars(axes: Axes, scene: Scene, plan: Contested, others: Mapping[str, Entrant]) -> None:
    names = [*plan.controllers, *others]
    for place, name in enumerate(reversed(names)):
        if name in others:
            _bar(axes, place, _over_turns(scene, others[name]), GREY)
        else:
            rates = list(scene.over_initial(name).values())
            bar = _over_gammas(rates) if rates else _over_turns(scene, Entrant("rule", name, plan.initial))
            _bar(axes, place, bar, ORANGE if name == "fixed" else BLUE)
    axes.set_yticks(range(len(names)), list(reversed(names)), fontsize=10)
    axes.set_ylim(-0.6, len(names) + 0.15)
    axes.set_xlim(left=0)
    axes.grid(axis="x", color=FAINT, lw=0.6, alpha=0.6)
    dress(axes)


def _mark_bests(axes: Axes, scene: Scene) -> None:
    """Lines at the best fixed gamma and at the target alone."""
    best, alone = scene.best_fixed_gamma, scene.rate(ALONE)
    if best is not None:
        label = "best fixed gamma, chosen in hindsight"
        axes.axvline(scene.fixed[best], color=ORANGE, lw=1.3, ls=(0, (4, 2)), label=label)
        axes.annotate(
            f"γ = {best}", (scene.fixed[best], 1), xycoords=("data", "axes fraction"), ha="right", va="top",
            xytext=(-3, -2), textcoords="offset points", fontsize=9, color=ORANGE,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # the other line may run there
        )  # fmt: skip
    if alone is not None:
        axes.axvline(alone, color=INK, lw=1.1, ls=(0, (1, 1.5)), label="target alone")


def _over_gammas(rates: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Mean, mean − and + a standard deviation, least, most."""
    mean, deviation = statistics.mean(rates), statistics.stdev(rates)
    return mean, mean - deviation, mean + deviation, min(rates), max(rates)


def _over_turns(scene: Scene, entrant: Entrant) -> tuple[float, float, float, float, float] | None:
    speed = scene.speed(entrant)
    return (speed.rate, speed.low, speed.high, math.nan, math.nan) if speed else None


def _bar(axes: Axes, place: int, bar: tuple[float, float, float, float, float] | None, colour: str) -> None:
    if bar is None:
        axes.text(0, place, " not run here", va="center", fontsize=8, color=GREY)
        return
    rate, low, high, least, most = bar
    axes.barh(place, rate, height=0.68, color=colour, alpha=0.8)
    axes.plot([low, high], [place, place], color=INK, lw=1.6, solid_capstyle="butt")
    axes.plot([least, most], [place, place], ls="", marker="o", ms=2.6, color=INK)
