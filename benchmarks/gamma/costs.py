"""What drafting and verifying cost on some machine: from a JSON file, an engine, or a profile.

A file, by hand or written by :func:`save_costs`:

    {"osd_costs": 1, "name": "my-gpu", "source": "timed on ...",
     "draft":  {"cells": [[1, 1, 0.9], [8, 1, 1.1]]},
     "verify": {"pieces": [{"start_ms": 4.2, "row_ms": 0.03, "token_ms": 0}, {"start_ms": 0, "token_ms": 0.03}]},
     "catch_up_token_ms": 0.002}

``draft`` is milliseconds of one draft pass, over (rows, passes of the draft); ``verify`` milliseconds of one target
pass, over (rows, tokens in the pass, all rows together). Either is given in one of two ways. ``cells``: measured
[rows, tokens or passes, milliseconds], straight lines between them. ``pieces``: the largest of some sums start_ms +
row_ms · rows + token_ms · tokens; two of them are a roofline: reading the weights, or computing. ``catch_up_token_ms``
(may be left out: 0) is what a draft takes longer for each token that the drafter has to read first.

The profiles beside this file are tables for hardware that one does not have; docs/simulator.md says whence they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError

from osd.bench.harness.report import save_json
from osd.gamma.base import CostModel
from storage.errors import BadBenchFile, BadInput

Milliseconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, gt=0)]
Cell = tuple[Count, Count, Annotated[Milliseconds, Field(gt=0)]]
"""Rows, tokens or passes, milliseconds."""
PROFILES = Path(__file__).parent / "profiles"
NOTHING_ELSE = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class Piece:
    """One plane of a cost."""

    __pydantic_config__ = NOTHING_ELSE
    start_ms: Milliseconds = 0.0
    row_ms: Milliseconds = 0.0
    token_ms: Milliseconds = 0.0


@dataclass(frozen=True, slots=True)
class Pieces:
    """The largest of several planes."""

    __pydantic_config__ = NOTHING_ELSE
    pieces: Annotated[tuple[Piece, ...], Field(min_length=1)]

    def ms(self, batch: int, tokens: int) -> float:
        """Milliseconds at so many rows and tokens (or passes)."""
        return max(p.start_ms + p.row_ms * batch + p.token_ms * tokens for p in self.pieces)


@dataclass(eq=False)
class CostCells:
    """Measured points. Between two, and between two batch sizes, straight lines; before the first, its value; after
    the last, on as the last two rise."""

    __pydantic_config__ = NOTHING_ELSE
    cells: Annotated[list[Cell], Field(min_length=1)]

    def __post_init__(self) -> None:
        self._rows: dict[int, list[tuple[int, float]]] = {}
        for batch, tokens, ms in sorted(self.cells):
            self._rows.setdefault(batch, []).append((tokens, ms))
        self._known: dict[tuple[int, int], float] = {(batch, tokens): ms for batch, tokens, ms in self.cells}

    def ms(self, batch: int, tokens: int) -> float:
        """Milliseconds at so many rows and tokens (or passes)."""
        known = self._known.get((batch, tokens))
        if known is None:
            known = self._between(batch, tokens)
            self._known[batch, tokens] = known
        return known

    def _between(self, batch: int, tokens: int) -> float:
        if batch in self._rows:
            return _along(self._rows[batch], tokens)
        return _along([(other, _along(curve, tokens)) for other, curve in self._rows.items()], batch)


def _along(points: Sequence[tuple[int, float]], x: int) -> float:
    """y at x on the lines through the points, which are in order of x."""
    above = next((i for i, (known, _) in enumerate(points) if known >= x), len(points) - 1)
    if above == 0:
        return points[0][1]
    (x0, y0), (x1, y1) = points[above - 1], points[above]
    slope = (y1 - y0) / (x1 - x0)
    return y1 + max(slope, 0.0) * (x - x1) if x > x1 else y0 + slope * (x - x0)


def _way(surface: Any) -> str:
    """Return in which of the two ways a cost is given, as it stands in a file or as it was read."""
    return "pieces" if isinstance(surface, Pieces) or (isinstance(surface, dict) and "pieces" in surface) else "cells"


Surface = Annotated[
    Annotated[Pieces, Tag("pieces")] | Annotated[CostCells, Tag("cells")], Discriminator(_way)
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class CostTable:
    """a(B) and b(B, N) of one machine and pair."""

    __pydantic_config__ = NOTHING_ELSE
    name: str
    source: str
    """Where the numbers are from."""
    draft: Surface
    """Milliseconds of one pass, at (rows, passes of the draft)."""
    verify: Surface
    """Milliseconds of one target pass, at (rows, tokens in the pass)."""
    catch_up_token_ms: Milliseconds = 0.0
    """Milliseconds a token that a drafter has to read before it drafts (a new prompt, rounds without a draft)."""
    osd_costs: Literal[1] = 1
    """Version of the file's layout."""

    def draft_ms(self, batch: int, passes: int) -> float:
        """Milliseconds of ``passes`` draft passes over ``batch`` rows."""
        return self.draft.ms(batch, passes) * passes

    def verify_ms(self, batch: int, tokens: int) -> float:
        """b(B, N): milliseconds of one target pass over ``batch`` rows with ``tokens`` tokens in all."""
        return self.verify.ms(batch, tokens)


def profiles() -> list[str]:
    """Return the names of the profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


def find_costs(name: str) -> CostTable:
    """Read a profile by its name, or a JSON file by its path. Raises BadBenchFile."""
    path = PROFILES / f"{name}.json" if name in profiles() else Path(name)
    if not path.exists():
        known = ", ".join(profiles())
        raise BadBenchFile(path=name, reason=f"there is no such file, nor such a profile of costs (known: {known})")
    return load_costs(path)


def load_costs(path: Path) -> CostTable:
    """Read a JSON file. Raises BadBenchFile, which names what is wrong and what would be right."""
    try:
        values = {"name": path.stem, "source": str(path), "osd_costs": None} | json.loads(path.read_text())
        return TypeAdapter(CostTable).validate_python(values)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"]))
        raise BadBenchFile(path=path, reason=f"{place} is {wrong['input']!r}: {wrong['msg']}") from None
    except (OSError, ValueError, TypeError) as error:
        raise BadBenchFile(path=path, reason=f"is not a cost table that can be read ({error})") from None


def save_costs(path: Path, table: CostTable) -> None:
    """Write a table as such a file. Raises StoreWriteFailed."""
    save_json(path, asdict(table))


def costs_of_engine(costs: CostModel, name: str, source: str, *, batches: Sequence[int], depth: int) -> CostTable:
    """What an engine's cost model holds, as cells for these batch sizes and drafts of 0 to ``depth`` tokens.

    Raises BadInput while it has timed no draft or no target pass.
    """
    drafts = [(batch, passes, costs.draft_ms(batch, passes)) for batch in batches for passes in range(1, depth + 1)]
    verified = [
        (batch, batch * count, costs.verify_ms(batch, batch * count))
        for batch in batches
        for count in range(1, depth + 2)
    ]
    draft = CostCells([(batch, passes, ms / passes) for batch, passes, ms in drafts if ms is not None])
    verify = CostCells([(batch, tokens, ms) for batch, tokens, ms in verified if ms is not None])
    if not draft.cells or not verify.cells:
        raise BadInput(reason="The engine has timed no draft yet; decode something with gamma above 0 first.")
    return CostTable(name, source, draft, verify)
