"""Table 1 with errors: α of each draft on each data set, and what it differs from TF with forward KL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.distil.arms import DistilArm
from benchmarks.distil.bench import DistilCell

REFERENCE = DistilArm("TF", "forward_kl")
"""What the paper found best."""


def alpha(cell: DistilCell) -> float:
    """Return the share of test positions at which the target accepts."""
    return sum(cell.accepted) / sum(cell.positions)


def error(cell: DistilCell, other: DistilCell | None = None) -> float:
    """Return the standard error of α, or of its difference to another draft's on the same texts: over texts, which are
    what was drawn (a ratio estimator, as the gate's)."""
    own = [a - (other.accepted[i] if other else 0.0) for i, a in enumerate(cell.accepted)]
    n, total = len(own), sum(cell.positions)
    mean = sum(own) / total
    squares = sum((a - mean * m) ** 2 for a, m in zip(own, cell.positions, strict=True))
    return math.sqrt(n / max(1, n - 1) * squares) / total


def figures_of(cells: Sequence[DistilCell]) -> dict[str, Any]:
    """Return every cell with its α, error, and paired difference to TF with forward KL."""
    found = []
    for cell in cells:
        facts = {
            "set": cell.data_set, "temperature": cell.temperature, "arm": cell.name, "loss": cell.loss or None,
            "alpha": alpha(cell), "error": error(cell), "positions_trained": cell.trained, "seconds": cell.seconds,
        }  # fmt: skip
        beside = _beside(cells, cell)
        if beside is not None and beside is not cell:
            facts |= {"against_tf": alpha(cell) - alpha(beside), "against_tf_error": error(cell, beside)}
        found.append(facts)
    return {"cells": found}


def _beside(cells: Sequence[DistilCell], cell: DistilCell) -> DistilCell | None:
    same = (c for c in cells if (c.data_set, c.temperature) == (cell.data_set, cell.temperature))
    return next((c for c in same if c.job.arm == REFERENCE), None)


def tables_of(cells: Sequence[DistilCell]) -> dict[str, list[dict[str, str]]]:
    """Return a table a temperature: a line a draft, a column a data set."""
    tables: dict[str, list[dict[str, str]]] = {}
    for temperature in dict.fromkeys(cell.temperature for cell in cells):
        some = [cell for cell in cells if cell.temperature == temperature]
        rows = {str(cell.job.arm): {"draft": str(cell.job.arm)} for cell in some}
        for cell in some:
            rows[str(cell.job.arm)][cell.data_set] = _shown(cells, cell)
        name = "greedy" if temperature == 0 else f"temperature {temperature:g}"
        tables[f"α ± standard error, {name} (in brackets: less TF with forward KL, paired)"] = list(rows.values())
    return tables


def _shown(cells: Sequence[DistilCell], cell: DistilCell) -> str:
    own, beside = f"{alpha(cell):.3f} ± {error(cell):.3f}", _beside(cells, cell)
    if beside is None or beside is cell:
        return own
    return f"{own} ({alpha(cell) - alpha(beside):+.3f} ± {error(cell, beside):.3f})"
