"""Claims of papers, and the rule by which each is judged, written down before anything is run.

A claim is *confirmed* where the whole interval of its figure lies within its bounds, *refuted* where all of it lies
outside, and *open* where the error could turn the answer, where no error is known, or where all measurements lie on a
bound: nothing was faster or slower there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from benchmarks.figures import PaperFigure

VerdictState = Literal["confirmed", "refuted", "open"]


class Closed(BaseModel):
    """A part of the catalogue: what it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Claim(Closed):
    """One thing that a paper says, and what would show it."""

    text: str
    """In one sentence."""
    figure: str
    """Name of the figure that decides."""
    at_least: float | None = None
    at_most: float | None = None
    question: str = ""
    """The question that it answers, where it is one of those at the top of the page."""

    @model_validator(mode="after")
    def _bounded(self) -> Claim:
        if self.at_least is None and self.at_most is None:
            raise ValueError(f"{self.text!r} has no bound, so nothing could refute it")
        return self

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
