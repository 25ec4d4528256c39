"""`python -m benchmarks cells`: from recordings and tables of costs to a folder of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from benchmarks.cells.ablations import ABLATIONS
from benchmarks.cells.cell import NOT_DRAFTING, Arm, CellJob, CellMeasured, CellReplay, fixed_arms, require_arm
from benchmarks.cells.summary import Rates, by, figures_of, held_out, rows
from benchmarks.gamma.costs import find_costs, profiles
from benchmarks.gamma.rounds import read_recording
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import Count, facts_of
from osd.bench.harness.report import BenchResult, save_json
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch
from storage.errors import BadSetting
from storage.settings import Settings

MOST_FIXED = 8
"""Largest fixed gamma."""


@dataclass(frozen=True, kw_only=True)
class CellsPlan:
    """Gamma rules over every cell of table of costs × pair × batch size × temperature, replayed from recordings, each
    from a cold start; against the best fixed gamma in hindsight and against not drafting.

    Example: `python -m benchmarks cells --rounds docs/rounds/reference.parquet --rules goodput,analytic --out cells`
    """

    rounds: tuple[Path, ...]
    """Recordings, rounds.parquet of a gamma bench."""
    out: Path
    """Folder for what was measured; a stopped run goes on in it."""
    costs: tuple[str, ...] = ()
    """Tables or profiles of costs. Default: all profiles."""
    rules: tuple[str, ...] = ("goodput",)
    """Gamma rules."""
    vary: tuple[str, ...] = ()
    """Values of a rule's setting, RULE.KEY=V:V, chosen with tables and pairs held out."""
    ablate: bool = False
    """goodput without each of its terms, too."""
    batch_sizes: tuple[Count, ...] = (1, 8, 32)
    """Rows that decode together."""
    count: Count = 32
    """Requests of a cell."""
    noise: Annotated[float, Ge(0)] = 0.1
    """Of timings, standard deviation of their logarithm."""
    seed: int = 0
    """Of noise, and of the coins of sampled texts."""

    @property
    def arms(self) -> list[Arm]:
        """Each rule as it is and varied, and goodput without its terms. Raises BadSetting."""
        arms = [arm for rule in self.rules for arm in arms_of(rule, self.vary)]
        return arms + [Arm("goodput", name) for name in (ABLATIONS if self.ablate else ())]


def bench_cells(plan: CellsPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Replay every cell under every arm; raises BadSetting for a folder of another plan, StoreWriteFailed."""
    tables = [find_costs(name) for name in plan.costs or profiles()]
    recordings = {path.stem: read_recording(path) for path in plan.rounds}
    cells = CellReplay(settings, recordings, tables, plan)
    arms = [*fixed_arms(min(MOST_FIXED, cells.depth)), *plan.arms]
    for arm in arms:
        require_arm(arm)
    facts = facts_of(plan, costs=[table.name for table in tables], arms=[asdict(arm) for arm in arms])
    folder = RunFolder(plan.out, facts, "measured.jsonl", CellMeasured)
    jobs = [CellJob(cell, arm) for cell in cells.cells(plan.batch_sizes) for arm in arms]
    measured = measure_all(jobs, cells.measure, watch, folder=folder, job_of=lambda each: each.job)
    if watch.stopped or not measured:
        return BenchResult("cells", facts, {}, interrupted=True)
    rates = Rates(measured)
    told = _tables(rates, [arm for arm in arms if arm.rule != "fixed" or arm == NOT_DRAFTING])
    figures = {title: {line.pop(next(iter(line))): line for line in map(dict, lines)} for title, lines in told.items()}
    return BenchResult("cells", facts, figures, told, {"all figures": save_json(plan.out / "bench.json", figures)})


def arms_of(rule: str, vary: Sequence[str]) -> list[Arm]:
    """Return the rule as it is, and with each value of its settings that ``vary`` (RULE.KEY=V:V) names. Raises
    BadSetting."""
    arms = [Arm(rule)]
    for text in vary:
        name, _, values = text.partition("=")
        owner, _, key = name.partition(".")
        try:
            arms += [Arm(rule, key, float(value)) for value in values.split(":") if owner == rule]
        except ValueError:
            raise BadSetting(source="option", key="--vary", reason=f"{text!r} is not RULE.KEY=NUMBER:NUMBER") from None
    return arms


def _tables(rates: Rates, arms: Sequence[Arm]) -> dict[str, list[dict[str, Any]]]:
    tables = {f"All {len(rates.cells)} cells": rows(rates, arms)}
    for rule in dict.fromkeys(arm.rule for arm in arms if arm != NOT_DRAFTING):
        candidates = [arm for arm in arms if arm.rule == rule and arm.key not in ABLATIONS]
        if len(candidates) > 1:
            chosen, folds = held_out(rates, candidates)
            lines: list[dict[str, Any]] = [{"": "chosen on others"} | figures_of(chosen, rates)]
            tables[f"{rule}, settings chosen with table and pair held out"] = lines
            tables[f"{rule}, what was chosen"] = [{"held out": fold, "setting": arm} for fold, arm in folds.items()]
        for field in ("table", "pair", "batch", "temperature"):
            tables[f"{rule} by {field}"] = by(rates, Arm(rule), field)
    return tables
