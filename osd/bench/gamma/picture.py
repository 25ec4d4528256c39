"""Two pictures: throughput by controller and data set, and what is verified against what is discarded."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from osd.bench.contenders import ASSISTED
from osd.bench.gamma.plan import ALONE, ORACLE, Entrant, GammaPlan
from osd.bench.gamma.scene import Scene
from osd.bench.harness.picture import BLUE, COLOURS, FAINT, GREY, INK, MARKS, ORANGE, dress, make_panels

BARS = (
    "Controllers: mean over initial gammas, ± a standard deviation, dots at least and most. "
    "Grey, and where no initial gammas were swept: median and range over turns."
)
OTHERS = {"target alone": ALONE, "oracle": ORACLE} | {
    f"transformers {name.removeprefix('assisted_')}": Entrant("assisted", name) for name in ASSISTED
}


def draw_throughput(scenes: Mapping[str, Scene], plan: GammaPlan) -> Figure:
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


def _bars(axes: Axes, scene: Scene, plan: GammaPlan, others: Mapping[str, Entrant]) -> None:
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


def draw_rates(scenes: Mapping[str, Scene], plan: GammaPlan) -> Figure:
    """SpecDec++'s Figure 3: discarded against verified, the fixed gammas as a line; grey lines join equal times.

    The frame is that of the controllers; fixed gammas that discard more lie above it.
    """
    figure, panels = make_panels(len(scenes), width=4.3, height=4.1)
    for axes, (name, scene) in zip(panels, scenes.items(), strict=True):
        frontier = [(gamma, *_rates(scene, Entrant("rule", "fixed", gamma))) for gamma in plan.gammas]
        axes.plot(
            [x for _, x, _ in frontier], [y for _, _, y in frontier], color=GREY, lw=1.4, marker=".", ms=5,
            label="fixed gamma",
        )  # fmt: skip
        for index, rule in enumerate(plan.adaptive):
            mark, colour = MARKS[index % len(MARKS)], COLOURS[index % len(COLOURS)]
            axes.plot(
                *_rates(scene, Entrant("rule", rule, plan.initial)), ls="", marker=mark, color=colour, label=rule,
                ms=8, alpha=0.85, markeredgecolor="white", markeredgewidth=0.6,
            )  # fmt: skip
        if ORACLE in scene.of:
            axes.plot(*_rates(scene, ORACLE), ls="", marker="*", ms=12, color=INK, label="oracle")
        _frame(axes, scene, plan)
        _name_points(axes, frontier)
        _equal_times(axes, scene)
        axes.set_title(f"{name}  (T={scene.setting.temperature:g}, batch {scene.setting.batch})", fontsize=11)
        dress(axes)
    figure.supxlabel("verification rate: rounds a token", fontsize=11)
    figure.supylabel("discard rate: drafted in vain a token", fontsize=11)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False, fontsize=10
    )
    return figure


def _rates(scene: Scene, entrant: Entrant) -> tuple[float, float]:
    counts = scene.counts(entrant)
    verified, discarded = counts["verification_rate"], counts["discard_rate"]
    return (math.nan if verified is None else verified), (math.nan if discarded is None else discarded)


def _frame(axes: Axes, scene: Scene, plan: GammaPlan) -> None:
    """Show where the controllers are: a fixed gamma of 24 discards so much that they would lie on one line."""
    best = Entrant("rule", "fixed", scene.best_fixed_gamma or plan.initial)
    points = [_rates(scene, each) for each in [best, *(Entrant("rule", name, plan.initial) for name in plan.adaptive)]]
    highest = max((y for _, y in points if not math.isnan(y)), default=1.0)
    axes.set_ylim(-0.06 * highest, 1.25 * highest or 1.0)


def _name_points(axes: Axes, frontier: Sequence[tuple[int, float, float]]) -> None:
    """The gamma beside each point that is in the frame and not too near to the last one named."""
    _, top = axes.get_ylim()
    last = -math.inf
    for gamma, x, y in frontier:
        if y < 0.97 * top and y - last > 0.05 * top:
            axes.annotate(str(gamma), (x, y), xytext=(5, 3), textcoords="offset points", fontsize=8, color=GREY)
            last = y


def _equal_times(axes: Axes, scene: Scene) -> None:
    """Points on one of these lines take the same time a token (Eq. 5.1)."""
    model = scene.time_model
    if model is None or model.draft_ms <= 0:
        return
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    slope = -(model.target_ms - model.draft_ms) / model.draft_ms
    for part in range(1, 8):  # through points of the rising diagonal, so that they are all over the frame
        point = left + part / 8 * (right - left), bottom + part / 8 * (top - bottom)
        label = "equal time a token" if part == 1 else "_"  # matplotlib leaves _ out of the legend
        axes.axline(point, slope=slope, color=FAINT, lw=0.8, zorder=0, label=label)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
