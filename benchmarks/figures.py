"""A figure with its standard error, over texts or seeds.

Its interval is value ± t · error, with Student's t for 95 % at the number of measurements behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from osd.bench.harness.report import shown

CONFIDENCE = 0.95
FEW = 8
"""Measurements below which it says nothing that all are the same."""


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """A number and how far it may be off."""

    value: float
    error: float | None = None
    """Standard error; 0 of what is computed, None where it is not known."""
    count: int | None = None
    """Independent measurements (texts, seeds) that the error is of; None for many."""

    @property
    def reach(self) -> float | None:
        """Half the width of the interval; None where no error is known."""
        if self.error is None or (self.count is not None and self.count < (2 if self.error else FEW)):
            return None
        if self.error == 0:
            return 0.0
        freedom = 1e9 if self.count is None else self.count - 1
        return float(student.ppf((1 + CONFIDENCE) / 2, freedom)) * self.error

    def __str__(self) -> str:
        if self.reach is None:
            return f"{shown(self.value)} (error not known)"
        same = " on every text" if self.count is not None and not self.reach else ""
        return shown(self.value) + (f" ± {shown(self.reach)}" if self.reach else same)


def exact(value: float) -> PaperFigure:
    """Return a figure that is computed, not measured."""
    return PaperFigure(float(value), 0.0)


def mean_of(values: npt.ArrayLike) -> PaperFigure:
    """Return the mean over texts or seeds and its standard error."""
    own = np.asarray(values, float)
    count = len(own)
    error = float(np.std(own, ddof=1)) / count**0.5 if count > 1 else None
    return PaperFigure(float(own.mean()), error, count)


def ratio_of_sums(above: npt.ArrayLike, below: npt.ArrayLike) -> PaperFigure:
    """Return Σ above ÷ Σ below over paired texts, with the standard error of the ratio estimator:
    √(n ÷ (n − 1) · Σ (aᵢ − R bᵢ)²) ÷ Σ b. Raises ZeroDivisionError where nothing is below."""
    a, b = np.asarray(above, float), np.asarray(below, float)
    if not b.sum():
        raise ZeroDivisionError("the texts to compare with sum up to 0")
    ratio, count = float(a.sum() / b.sum()), len(a)
    if count < 2:
        return PaperFigure(ratio, None, count)
    residuals = float(((a - ratio * b) ** 2).sum())
    return PaperFigure(ratio, (count / (count - 1) * residuals) ** 0.5 / float(b.sum()), count)


def difference_of_shares(one: npt.ArrayLike, other: npt.ArrayLike, of: npt.ArrayLike) -> PaperFigure:
    """Return Σ one ÷ Σ of − Σ other ÷ Σ of over paired texts: acceptance of two drafts on the same texts."""
    return ratio_of_sums(np.asarray(one, float) - np.asarray(other, float), of)


def jackknife(value: Callable[[npt.NDArray[np.bool_]], float], count: int) -> PaperFigure:
    """Return a figure of ``count`` texts, by the texts that are kept, and its jackknife error over them."""
    without = np.array([value(np.arange(count) != i) for i in range(count)])
    error = float(np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum())) if count > 1 else None
    return PaperFigure(value(np.ones(count, bool)), error, count)


def least(figures: Iterable[PaperFigure]) -> PaperFigure:
    """Return the lowest value; its interval begins where the first of all intervals does."""
    some = list(figures)
    lowest = min(some, key=lambda figure: figure.value)
    return _reaching(lowest, [lowest.value - one.value + one.reach for one in some if one.reach is not None], len(some))


def farthest(figures: Iterable[PaperFigure], place: float) -> PaperFigure:
    """Return the value that is farthest from a place; its interval reaches as far from there as any."""
    some = list(figures)
    last = max(some, key=lambda figure: abs(figure.value - place))
    off = [abs(one.value - place) - abs(last.value - place) + one.reach for one in some if one.reach is not None]
    return _reaching(last, off, len(some))


def _reaching(figure: PaperFigure, reaches: Sequence[float], count: int) -> PaperFigure:
    """Return a figure whose interval reaches as far as the widest; with no known error where not all have one."""
    unit = PaperFigure(0.0, 1.0, figure.count).reach
    known = len(reaches) == count and (unit or not max(reaches))
    return replace(figure, error=max(reaches) / (unit or 1.0) if known else None)
