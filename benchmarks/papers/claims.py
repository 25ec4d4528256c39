"""Claims of papers, and the rule by which each is judged, written down before anything is run.

A figure comes with its standard error. Its interval is value ± t · error, with Student's t for 95 % at the number of
measurements behind it. A claim is *confirmed* where the whole interval lies within the claim's bounds, *refuted* where
all of it lies outside, and *open* where the error could turn the answer, where no error is known, or where all
measurements lie on a bound: nothing was faster or slower there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from osd.bench.harness.report import shown

VerdictState = Literal["confirmed", "refuted", "open"]
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


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that a paper says, and what would show it."""

    text: str
    """In one sentence."""
    figure: str
    """Name of the figure that decides."""
    at_least: float | None = None
    at_most: float | None = None
    question: str = ""
    """The question that it answers, where it is one of those at the top of the page."""

    def __post_init__(self) -> None:
        if self.at_least is None and self.at_most is None:
            raise ValueError(f"{self.text!r} has no bound, so nothing could refute it")

    @property
    def rule(self) -> str:
        """The rule in words."""
        low = None if self.at_least is None else f"{self.figure} ≥ {self.at_least:g}"
        high = None if self.at_most is None else f"{self.figure} ≤ {self.at_most:g}"
        return " and ".join(bound for bound in (low, high) if bound)


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """What became of a claim."""

    claim: Claim
    state: VerdictState
    figure: PaperFigure | None
    """None where the experiment did not give it."""

    def __str__(self) -> str:
        return f"{self.state}: {self.claim.rule}; it is {'not there' if self.figure is None else self.figure}"


def judge(claim: Claim, figures: Mapping[str, PaperFigure]) -> ClaimVerdict:
    """Judge a claim by its rule."""
    figure = figures.get(claim.figure)
    if figure is None or figure.reach is None:
        return ClaimVerdict(claim, "open", figure)
    if figure.count is not None and not figure.reach and figure.value in (claim.at_least, claim.at_most):
        return ClaimVerdict(claim, "open", figure)
    low, high = figure.value - figure.reach, figure.value + figure.reach
    least = -np.inf if claim.at_least is None else claim.at_least
    most = np.inf if claim.at_most is None else claim.at_most
    if least <= low and high <= most:
        return ClaimVerdict(claim, "confirmed", figure)
    return ClaimVerdict(claim, "refuted" if high < least or low > most else "open", figure)


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
