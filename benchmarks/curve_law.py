"""Laws of a curve of acceptance by number of answers, what they say of later, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.figures import PaperFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]
Fitted = tuple[Callable[[Floats], Floats], dict[str, float]]
"""A law, and its numbers."""
LATER = 100_000
"""Answers of which the laws are asked."""
POWERS = np.linspace(0.02, 2, 199)
PUBLISHED = (60_000, 0.6, 0.8)
"""Answers that published drafts learned from, and acceptance that is told of them: of other targets and measures."""


def line(answers: Floats, acceptance: Floats) -> Fitted:
    """Fit a + b ln n."""
    b, a = np.polyfit(np.log(answers), acceptance, 1)
    return lambda n: a + b * np.log(n), {"a": float(a), "b": float(b)}


def saturating(answers: Floats, acceptance: Floats) -> Fitted:
    """Fit a − b n^−c with a ≤ 1, by least squares for each c of a grid."""
    best: tuple[float, float, float, float] | None = None
    for c in POWERS:
        columns = np.stack([np.ones_like(answers), -(answers**-c)], 1)
        (a, b), *_ = np.linalg.lstsq(columns, acceptance, rcond=None)
        off = float(((columns @ (a, b) - acceptance) ** 2).sum())
        if a <= 1 and b >= 0 and (best is None or off < best[0]):
            best = off, float(a), float(b), float(c)
    if best is None:  # as good as straight
        return line(answers, acceptance)
    _, a, b, c = best
    return lambda n: a - b * n**-c, {"a": a, "b": b, "c": c}


LAWS = {"a − b n^−c": saturating, "a + b ln n": line}


Curve = Sequence[tuple[int, PaperFigure]]
"""Answers, and acceptance."""


def laws_of(points: Curve) -> list[dict[str, Any]]:
    """Return each law with its numbers, how far it is off at a point that it did not see (root mean square), and what
    it says at LATER: of all points, and the least and most with any one left out. Nothing of fewer than five."""
    if len(points) < 5:
        return []
    n, acceptance = _columns(points)
    found = []
    for name, fit in LAWS.items():
        law, numbers = fit(n, acceptance)
        kept = [np.arange(len(n)) != i for i in range(len(n))]
        left = [fit(n[keep], acceptance[keep])[0] for keep in kept]
        off = [float(one(n[[i]])[0]) - acceptance[i] for i, one in enumerate(left)]
        later = [float(one(np.array([float(LATER)]))[0]) for one in (law, *left)]
        found.append(
            {"law": name, **numbers, "left out, off by": float(np.sqrt(np.mean(np.square(off)))),
             f"at {LATER}": later[0], "least": min(later), "most": max(later)}
        )  # fmt: skip
    return found


def _columns(points: Curve) -> tuple[Floats, Floats]:
    return np.array([n for n, _ in points], float), np.array([each.value for _, each in points])


def draw(
    curves: Mapping[str, Curve], laws: Sequence[Mapping[str, Any]], ways: Sequence[tuple[str, float, float]],
    folder: Path,
) -> Path:  # fmt: skip
    """Draw curves with their laws, and beside them how much better or worse other ways are."""
    from osd.bench.harness.picture import COLOURS, GREY, INK, dress, make_panels, save

    figure, panels = make_panels(2 if ways else 1, 5.4, 3.8)
    axes = panels[0]
    for (way, points), colour in zip(curves.items(), COLOURS, strict=False):
        n, values = _columns(points)
        axes.errorbar(n, values, [2 * (each.error or 0) for _, each in points], fmt="o", color=colour, label=way)
        for law, style in zip([law for law in laws if law["way"] == way], ("--", ":"), strict=False):
            grid = np.geomspace(n[0], LATER, 200)
            axes.plot(grid, LAWS[law["law"]](n, values)[0](grid), style, color=colour, label=law["law"])
    size, low, high = PUBLISHED
    axes.plot([size] * 2, [low, high], color=GREY, linewidth=6, alpha=0.5, solid_capstyle="butt")
    axes.annotate("published drafts", (size, high), ha="center", va="bottom", color=INK, fontsize=8)
    axes.set(xscale="log", xlabel="answers learned from", ylabel="accepted ÷ drafted", ylim=(0, 1))
    axes.legend(fontsize=8, loc="upper left")
    dress(axes)
    if ways:
        _differences(panels[1], list(ways)[::-1])
    return save(figure, folder, "curve")


def _differences(axes: Axes, ways: Sequence[tuple[str, float, float]]) -> None:
    from osd.bench.harness.picture import BLUE, FAINT, dress

    axes.axvline(0, color=FAINT)
    errors = [2 * error for _, _, error in ways]
    axes.errorbar([less for _, less, _ in ways], range(len(ways)), xerr=errors, fmt="o", color=BLUE)
    axes.set_yticks(range(len(ways)), [name.rpartition("+")[2] for name, _, _ in ways])
    axes.set(xlabel="accepted ÷ drafted, less the first curve's (± 2 s.e.)", ylim=(-0.6, len(ways) - 0.4))
    dress(axes)
