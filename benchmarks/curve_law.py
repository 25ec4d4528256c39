"""Laws of a curve of acceptance by number of answers, what they say of later, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.figures import PaperFigure

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


def laws_of(points: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
    """Return each law with its numbers, how far it is off at a point that it did not see (root mean square), and what
    it says at LATER: of all points, and the least and most with any one left out. Nothing of fewer than five."""
    if len(points) < 5:
        return []
    n, acceptance = (np.array(column, float) for column in zip(*points, strict=True))
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


def draw(
    points: Sequence[tuple[int, PaperFigure]], laws: Sequence[dict[str, Any]],
    ways: Sequence[tuple[str, float, float]], folder: Path,
) -> Path:  # fmt: skip
    """Draw the curve with its laws, and beside it how much better or worse other ways are."""
    from osd.bench.harness.picture import BLUE, COLOURS, FAINT, GREY, INK, dress, make_panels, save

    figure, panels = make_panels(2 if ways else 1, 5.2, 3.6)
    axes = panels[0]
    n, values = [each for each, _ in points], [each.value for _, each in points]
    grid = np.geomspace(min(n), LATER, 200)
    for law, colour in zip(laws, COLOURS[1:], strict=False):
        fitted, _ = LAWS[law["law"]](np.array(n, float), np.array(values))
        axes.plot(grid, fitted(grid), "--", color=colour, label=law["law"])
        ends = [law[name] for name in ("least", "most")]
        axes.plot([LATER * (1.06 if colour == COLOURS[1] else 1.0)] * 2, ends, color=colour, linewidth=3)
    axes.errorbar(
        n, values, [2 * (each.error or 0) for _, each in points], fmt="o", color=BLUE, label="measured ± 2 s.e."
    )
    size, low, high = PUBLISHED
    axes.plot([size] * 2, [low, high], color=GREY, linewidth=6, alpha=0.5, solid_capstyle="butt")
    axes.annotate("published drafts", (size, high), ha="center", va="bottom", color=INK, fontsize=8)
    axes.set(xscale="log", xlabel="answers learned from", ylabel="accepted ÷ drafted", ylim=(0, None))
    axes.legend(fontsize=8, loc="upper left")
    dress(axes)
    if ways:
        beside, rows = panels[1], list(ways)[::-1]
        beside.axvline(0, color=FAINT)
        errors = [2 * each for _, _, each in rows]
        beside.errorbar([each for _, each, _ in rows], range(len(rows)), xerr=errors, fmt="o", color=BLUE)
        beside.set_yticks(range(len(rows)), [name.rpartition("+")[2] for name, _, _ in rows])
        beside.set(xlabel="acceptance, less the default's (± 2 s.e.)")
        dress(beside)
    return save(figure, folder, "curve")
