"""Acceptance over the requests, when versions came, and where offline distillation would have brought it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osd.bench.harness.picture import BLUE, FAINT, INK, ORANGE, dress, make_panels, save
from osd.demo.runner.measure import WINDOW, moving_share

FEWEST = 10
"""Requests after which the curve begins: an average over one or two says nothing."""


def draw(answers: Mapping[str, Sequence[Any]], swaps: Sequence[int], figures: Mapping[str, Any], out: Path) -> Path:
    """Draw the curve of a run; return the picture."""
    figure, (axes,) = make_panels(1, width=8.6, height=3.6)
    served = [one for part in answers.values() for one in part]
    curve = moving_share([one.accepted for one in served], [one.accepted + one.refused for one in served])
    axes.plot(range(FEWEST, len(curve) + 1), curve[FEWEST - 1 :], color=BLUE, lw=2.2, label="draft that learns")
    start = 0
    for name, part in answers.items():
        if start:
            axes.axvline(start, color=INK, lw=1.0, alpha=0.6)
        elif figures["alpha_offline"] is not None:
            label, begin = "draft distilled offline", max(0, len(part) - WINDOW)
            axes.hlines(figures["alpha_offline"], begin, len(part), color=ORANGE, lw=2.0, ls="--", label=label)
        axes.text(start + len(part) / 2, 1.015, name, ha="center", va="bottom", fontsize=11, color=INK)
        start += len(part)
    later = swaps[1:]
    label = f"version published ({len(later)})"
    axes.plot(later, [0.012] * len(later), ls="", marker="|", ms=9, mew=1.4, color=INK, label=label)
    axes.set(xlim=(0, max(1, len(served))), ylim=(0, 1), xlabel="requests answered by vLLM")
    axes.set_ylabel(f"acceptance rate α, last {WINDOW} requests")
    axes.grid(axis="y", color=FAINT, lw=0.6, alpha=0.6)
    dress(axes)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return save(figure, out, "acceptance")
