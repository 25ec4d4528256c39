"""The curves: memory, open files and threads by role, over minutes."""

from __future__ import annotations

from matplotlib.figure import Figure

from osd.bench.harness.picture import COLOURS, FAINT, dress
from osd.bench.soak.watch import SETTLING, Curves

PANELS = {"memory": "resident memory, MiB", "files": "open files", "threads": "threads"}


def draw(curves: Curves) -> Figure:
    """A panel a quantity; the time before growth is counted is shaded."""
    figure = Figure(figsize=(10, 9), layout="constrained")
    rows = figure.subplots(len(PANELS), 1, sharex=True)
    last = max((samples[-1].at for samples in curves.values() if samples), default=0.0) / 60
    for axes, (what, label) in zip(rows, PANELS.items(), strict=True):
        for colour, (role, samples) in zip(COLOURS, curves.items(), strict=False):
            times = [sample.at / 60 for sample in samples]
            axes.plot(times, [getattr(sample, what) for sample in samples], color=colour, lw=1.3, label=role)
        axes.axvspan(0, SETTLING * last, color=FAINT, alpha=0.3, lw=0)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower right", frameon=False)
        dress(axes)
    rows[-1].set_xlabel("minutes; shaded: before growth is counted")
    return figure
