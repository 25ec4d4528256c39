"""The pictures of `osd stats`. Matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from osd.cli.out import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
"""Okabe and Ito's colours, which people with any colour vision can tell apart."""
LINES = len(COLOURS)
SPANS = {"minute": 60, "hour": 3600, "day": 86400}
"""Seconds beside the only point of a picture over time."""
BARS = 25
"""Maximum number of bars in a picture; the rest is in the table."""


def over_time(rows: Sequence[Row], time: str, keys: Sequence[str]) -> Figure:
    """Draw α over time, a line for each group; only the groups with most tokens where there are too many."""
    figure, axes = _new("acceptance rate α")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["alpha"] is not None:
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    ranked = sorted(groups.items(), key=lambda item: -sum(row["emitted"] for row in item[1]))
    for colour, (group, mine) in zip(COLOURS, ranked, strict=False):
        times = np.array([row[time] for row in mine], "datetime64[s]")
        label = ", ".join(map(str, group)) or "all requests"
        axes.plot(times, [row["alpha"] for row in mine], color=colour, lw=1.8, marker=".", ms=4, label=label)
    axes.set_xlabel(f"{time} (UTC)" + (f"; {LINES} of {len(ranked)} groups" if len(ranked) > LINES else ""))
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, fontsize=8)
    if len(found := {row[time] for row in rows}) == 1:  # else the axis would span years
        one, beside = np.array(found.pop(), "datetime64[s]"), np.timedelta64(SPANS[time], "s")
        axes.set_xlim(one - beside, one + beside)  # type: ignore[arg-type]
    figure.autofmt_xdate()
    return figure


def bars(rows: Sequence[Row], keys: Sequence[str], measure: str, name: str) -> Figure:
    """Draw one horizontal bar a row, from the top."""
    shown = [row for row in rows if row[measure] is not None][:BARS]
    figure, axes = _new(None, height=1.2 + 0.28 * len(shown))
    labels = [", ".join(str(row[key]) for key in keys) or "all requests" for row in shown]
    axes.barh(range(len(shown)), [row[measure] for row in shown], color=COLOURS[0])
    axes.set_yticks(range(len(shown)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(name + (f"; {BARS} of {len(rows)}" if len(rows) > BARS else ""))
    return figure


def places(rows: Sequence[Row], keys: Sequence[str]) -> Figure:
    """Draw α by position in the draft, a line for each group."""
    figure, axes = _new("acceptance rate α there")
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(", ".join(str(row[key]) for key in keys) or "all requests", []).append(row)
    for colour, (label, mine) in zip(COLOURS, groups.items(), strict=False):
        known = [row for row in mine if row["alpha"] is not None]
        axes.plot(
            [row["position"] + 1 for row in known], [row["alpha"] for row in known], "o-", color=colour, label=label
        )
    axes.set_xlabel("place in the draft")
    axes.set_xticks(sorted({row["position"] + 1 for row in rows}))
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, fontsize=8)
    return figure


def changes(rows: Sequence[Row]) -> Figure:
    """Draw each route's difference with its interval."""
    shown = [row for row in rows if row["difference"] is not None]
    figure, axes = _new(None, height=1.2 + 0.35 * len(shown))
    for at, row in enumerate(shown):
        if row["low"] is not None:
            axes.plot([row["low"], row["high"]], [at, at], color=COLOURS[0], lw=2)
        axes.plot(row["difference"], at, "o", color=COLOURS[0])
    axes.axvline(0, color="#555555", lw=0.8)
    axes.set_yticks(range(len(shown)), ["all routes" if row["route"] == "*" else row["route"] for row in shown])
    axes.invert_yaxis()
    axes.set_xlabel("α after − α before")
    return figure


def learned(rows: Sequence[Row]) -> Figure:
    """Draw precision and recall by frequency rank, before and after: Figure 7 of online speculative decoding."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    for axes, measure in zip(figure.subplots(1, 2, sharey=True), ("precision", "recall"), strict=True):
        for side, colour, marker in (("before", COLOURS[1], "o"), ("after", COLOURS[0], "^")):
            known = [row for row in rows if row[f"{measure}_{side}"] is not None]
            ranks, values = [row["rank"] for row in known], [row[f"{measure}_{side}"] for row in known]
            axes.scatter(ranks, values, s=14, color=colour, marker=marker, label=side)
        axes.set_title(measure, loc="left", fontsize=11)
        axes.set_xlabel("rank of the token in the answers")
        axes.set_ylim(-0.02, 1.02)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    return figure


def _new(ylabel: str | None, height: float = 3.8) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, height), layout="constrained")
    axes = figure.subplots()
    if ylabel:
        axes.set_ylabel(ylabel)
    axes.grid(color="#BBBBBB", lw=0.6, alpha=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
