"""What the cells come to: each arm against the best fixed gamma in hindsight and against not drafting, and which value
of a setting would have been chosen on other tables and pairs."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.cells.cell import NOT_DRAFTING, Arm, CellMeasured, GammaCell

BAR = 0.97
"""Cells below this share of not drafting are counted."""


class Rates:
    """Tokens a second by cell and arm, for the cells in which all arms were replayed."""

    def __init__(self, measured: Iterable[CellMeasured]) -> None:
        by_cell: dict[GammaCell, dict[Arm, CellMeasured]] = defaultdict(dict)
        for each in measured:
            by_cell[each.job.cell][each.job.arm] = each
        most = max(map(len, by_cell.values()), default=0)
        self._by_cell = {cell: arms for cell, arms in by_cell.items() if len(arms) == most}
        self.arms = list(dict.fromkeys(arm for arms in self._by_cell.values() for arm in arms))

    @property
    def cells(self) -> list[GammaCell]:
        return list(self._by_cell)

    def vs_best_fixed(self, arm: Arm, cell: GammaCell) -> float:
        """Return its rate ÷ that of the best fixed gamma from 1 on."""
        arms = self._by_cell[cell]
        best = max(m.tokens_per_second for a, m in arms.items() if a.rule == "fixed" and a != NOT_DRAFTING)
        return arms[arm].tokens_per_second / best

    def vs_not_drafting(self, arm: Arm, cell: GammaCell) -> float:
        """Return its rate ÷ that of no drafts."""
        arms = self._by_cell[cell]
        return arms[arm].tokens_per_second / arms[NOT_DRAFTING].tokens_per_second

    def decision_us(self, arm: Arm) -> float:
        """Return the median over cells of the microseconds of a decision on one row."""
        return statistics.median(arms[arm].decision_us for arms in self._by_cell.values())


def figures(rates: Rates, arm: Arm, cells: Sequence[GammaCell]) -> dict[str, float]:
    """Return an arm's figures over some cells."""
    return figures_of(dict.fromkeys(cells, arm), rates)


def figures_of(chosen: Mapping[GammaCell, Arm], rates: Rates) -> dict[str, float]:
    """Return the figures of the arm that each cell has."""
    fixed = sorted(rates.vs_best_fixed(arm, cell) for cell, arm in chosen.items())
    alone = sorted(rates.vs_not_drafting(arm, cell) for cell, arm in chosen.items())
    return {
        "÷ best fixed: median": statistics.median(fixed),
        "worst tenth": fixed[len(fixed) // 10],
        "least": fixed[0],
        "mean": statistics.geometric_mean(fixed),
        "÷ not drafting: mean": statistics.geometric_mean(alone),
        "least ": alone[0],
        f"below {BAR}": sum(ratio < BAR for ratio in alone),
    }


def score(rates: Rates, arm: Arm, cells: Collection[GammaCell]) -> float:
    """Return by what values of settings are chosen: the mean logarithm of the ratio to the best fixed gamma, and of
    what is lost against not drafting."""
    logs = [
        math.log(rates.vs_best_fixed(arm, cell)) + min(0.0, math.log(rates.vs_not_drafting(arm, cell)))
        for cell in cells
    ]
    return statistics.fmean(logs)


def held_out(rates: Rates, candidates: Sequence[Arm]) -> tuple[dict[GammaCell, Arm], dict[str, str]]:
    """Choose among ``candidates`` for every cell by the cells that share neither its table nor its pair; return the
    choices, and the candidate chosen by table and by pair held out."""
    chosen: dict[GammaCell, Arm] = {}
    folds: dict[str, str] = {}
    kinds: tuple[Callable[[GammaCell], str], ...] = (lambda cell: cell.table, lambda cell: cell.pair)
    known: dict[tuple[str, str], Arm] = {}
    for cell in rates.cells:
        fold = kinds[0](cell), kinds[1](cell)
        if fold not in known:
            others = [c for c in rates.cells if c.table != fold[0] and c.pair != fold[1]]
            best = max(candidates, key=lambda arm: score(rates, arm, others)) if others else candidates[0]
            known[fold] = best
            folds[f"{fold[1]} under {fold[0]}"] = str(best)
        chosen[cell] = known[fold]
    return chosen, folds


def rows(rates: Rates, arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Return a table's lines, one an arm."""
    return [
        {"": str(arm)} | figures(rates, arm, rates.cells) | {"µs a decision": rates.decision_us(arm)} for arm in arms
    ]


def by(rates: Rates, arm: Arm, field: str) -> list[dict[str, Any]]:
    """Return an arm's figures by a field of its cells."""
    values = dict.fromkeys(getattr(cell, field) for cell in rates.cells)
    some = {value: [cell for cell in rates.cells if getattr(cell, field) == value] for value in values}
    return [{field: str(value)} | figures(rates, arm, cells) for value, cells in some.items()]
