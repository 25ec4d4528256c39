"""What the bench for GPUs is to measure, what it found, and the time that each of its parts has."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from osd.bench.harness.watch import Watch

WEIGHTS: Mapping[str, float] = {"made": 0.5, "passes": 4, "rules": 4, "learning": 2, "swaps": 0.5, "static": 2}
"""Parts of the time that is left: a part that needs less leaves the rest to those after it."""


@dataclass(frozen=True, slots=True)
class GpuSizes:
    """How much of all is measured. What comes first is surest to be measured."""

    rows: tuple[int, ...] = (1, 8, 32)
    widths: tuple[int, ...] = (1, 5, 2, 9, 3)
    batches: tuple[int, ...] = (1, 8)
    new_tokens: int = 64
    turns: int = 2
    repeats: int = 20
    copied: int = 2 << 30
    """Bytes that tell the bandwidth."""
    learning: float = 5.0
    """Seconds in which a trainer learns alone."""


SMALL = GpuSizes((1, 2), (1, 3), (1, 2), new_tokens=16, turns=1, repeats=5, copied=1 << 22, learning=1.0)
"""For a CPU."""


@dataclass(frozen=True, kw_only=True)
class GpuPlan:
    """Passes, gamma rules, learning and swaps of models of real shapes with random weights, on the GPU that is there.

    It needs no download and at most six minutes. The cost tables are for `benchmarks gamma --simulate --costs`.

    Example: `python -m benchmarks gpu --json`
    """

    shapes: tuple[Literal["8b", "8b-128k", "1b", "tiny"], ...] = ("8b", "8b-128k", "1b")
    """Shapes, the most telling first."""
    seconds: Annotated[float | None, Ge(1)] = None
    """What is not begun by then is left out. Default: 330, with --small 120."""
    small: bool = False
    """The tiny shape and little of all; for a CPU."""
    out: Path = Path("bench-gpu")
    """Folder for the cost tables."""

    @property
    def sizes(self) -> GpuSizes:
        """How much of all is measured."""
        return SMALL if self.small else GpuSizes()

    @property
    def measured(self) -> tuple[str, ...]:
        """The shapes that are measured."""
        return ("tiny",) if self.small else self.shapes

    @property
    def lasting(self) -> float:
        """Seconds for all of it."""
        return self.seconds or (120.0 if self.small else 330.0)


@dataclass(slots=True)
class Findings:
    """What was found, while there is time."""

    plan: GpuPlan
    watch: Watch
    weight: float = 0.0
    """What all parts that are still to come weigh."""
    figures: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    until: float = 0.0
    """When the part that runs should be over."""

    @property
    def sizes(self) -> GpuSizes:
        """How much of all is measured."""
        return self.plan.sizes

    def take(self, what: str, kind: str, part: Callable[[], Any]) -> Any:
        """Run a part of the bench and keep what it returns; leave it out once the time is used up, or where it fails:
        the other parts are worth having."""
        begun, share = time.monotonic(), WEIGHTS[kind] / max(self.weight, WEIGHTS[kind])
        end, self.weight = self.begun + self.plan.lasting, self.weight - WEIGHTS[kind]
        if begun >= end:
            self.leave_out(f"{what}: no time")
            return None
        self.until = begun + (end - begun) * share
        self.watch.at(what)
        found = self.tried(what, part)
        self.figures.setdefault("seconds", {})[what] = round(time.monotonic() - begun, 1)
        if found is not None:
            self.figures[what] = found
        self.watch.did()
        return found

    def tried(self, what: str, part: Callable[[], Any]) -> Any:
        """Return what a part returns; None where it fails, which is named."""
        try:
            return part()
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, AssertionError) as error:
            self.leave_out(f"{what}: {type(error).__name__}: {str(error)[:200]}")
            return None

    def leave_out(self, what: str) -> None:
        """Name what was not measured."""
        self.left_out.append(what)

    @property
    def remaining(self) -> float:
        """Seconds that the part that runs still has."""
        return max(0.0, self.until - time.monotonic())

    @property
    def late(self) -> bool:
        """Whether the part that runs should be over."""
        return not self.remaining
