"""A table of what drafting and verifying cost on some machine, from a JSON file, an engine, or a profile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from osd.gamma import CostModel


class Surface(Protocol):
    """Milliseconds over (batch, tokens)."""

    def ms(self, batch: int, tokens: int) -> float:
        """Milliseconds."""
        ...


@dataclass(frozen=True, slots=True)
class CostTable:
    """a(B) and b(B, N) of one machine and pair."""

    name: str
    source: str
    """Where the numbers are from."""
    draft: Surface
    """Milliseconds of one pass, at (rows, passes of the draft)."""
    verify: Surface
    """Milliseconds of one target pass, at (rows, tokens in the pass)."""
    catch_up_token_ms: float = 0.0
    """Milliseconds a token that a drafter has to read before it drafts (a new prompt, rounds without a draft)."""

    def draft_ms(self, batch: int, passes: int) -> float:
        """Milliseconds of ``passes`` draft passes over ``batch`` rows."""
        return self.draft.ms(batch, passes) * passes

    def verify_ms(self, batch: int, tokens: int) -> float:
        """b(B, N): milliseconds of one target pass over ``batch`` rows with ``tokens`` tokens in all."""
        return self.verify.ms(batch, tokens)


def load_costs(name: str | Path) -> CostTable:
    """A profile of :data:`osd.bench.gamma.profiles.PROFILES` by name, or a JSON file. Raises BadBenchFile."""
    raise NotImplementedError


def save_costs(path: Path, table: CostTable) -> None:
    """Write a table as JSON. Raises StoreWriteFailed."""
    raise NotImplementedError


def costs_of_engine(costs: CostModel, name: str, source: str) -> CostTable:
    """What an engine measured, as a table of cells."""
    raise NotImplementedError
