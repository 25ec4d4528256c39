"""`python -m benchmarks cells`: from recordings and tables of costs to a folder of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cells.ablations import ABLATIONS
from benchmarks.cells.cell import NOT_DRAFTING, Arm, CellJob, CellMeasured, CellReplay, fixed_arms, require_arm
from benchmarks.cells.summary import Rates, by, figures_of, held_out, rows
from benchmarks.gamma.costs import find_costs, profiles
from benchmarks.gamma.rounds import read_recording
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.options import JsonOption
from osd.bench.harness.prompts import listed
from osd.bench.harness.report import BenchResult, save_json
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch, watching
from storage.errors import BadSetting
from storage.settings import load_settings

MOST_FIXED = 8
"""Largest fixed gamma."""


def command(
    rounds: Annotated[list[str], typer.Option(help="Recordings, rounds.parquet of a gamma bench.", metavar="FILE,…")],
    out: Annotated[Path, typer.Option(help="Folder for what was measured; a stopped run goes on in it.")],
    costs: Annotated[
        list[str] | None, typer.Option(help="Tables or profiles of costs. Default: all profiles.", metavar="NAME,…")
    ] = None,
    rules: Annotated[list[str] | None, typer.Option(help="Gamma rules.", metavar="RULE,…")] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="Values of a rule's setting, chosen with tables and pairs held out.", metavar="RULE.KEY=V,…"),
    ] = None,
    ablate: Annotated[bool, typer.Option(help="goodput without each of its terms, too.")] = False,
    batch_sizes: Annotated[list[str] | None, typer.Option(help="Default: 1, 8, 32.", metavar="N,…")] = None,
    count: Annotated[int, typer.Option(help="Requests of a cell.", min=1)] = 32,
    noise: Annotated[float, typer.Option(help="Of timings, standard deviation of their logarithm.", min=0)] = 0.1,
    seed: Annotated[int, typer.Option(help="Of noise, and of the coins of sampled texts.")] = 0,
    json: JsonOption = False,
) -> None:
    """Gamma rules over every cell of table of costs × pair × batch size × temperature, replayed from recordings, each
    from a cold start; against the best fixed gamma in hindsight and against not drafting.

    Example: `python -m benchmarks cells --rounds docs/rounds/reference.parquet --rules goodput,analytic --out cells`
    """
    files = [Path(name) for name in listed(rounds)]
    tables = [find_costs(name) for name in listed(costs) or profiles()]
    cells = CellReplay(load_settings(), {path.stem: read_recording(path) for path in files}, tables, count, noise, seed)
    names = listed(rules) or ["goodput"]
    varied = {name: arms_of(name, vary or []) for name in names}
    arms = [*fixed_arms(min(MOST_FIXED, cells.depth)), *(arm for name in names for arm in varied[name])]
    arms += [Arm("goodput", name) for name in ABLATIONS] if ablate else []
    for arm in arms:
        require_arm(arm)
    sizes = [int(size) for size in listed(batch_sizes)] or [1, 8, 32]
    facts = {
        "rounds": [path.name for path in files], "costs": [table.name for table in tables],
        "arms": [asdict(arm) for arm in arms], "batch_sizes": sizes, "count": count, "noise": noise, "seed": seed,
    }  # fmt: skip
    with watching() as watch:
        result = bench_cells(cells, arms, sizes, facts, out, watch)
    raise typer.Exit(result.show(as_json=json))


def arms_of(rule: str, vary: Sequence[str]) -> list[Arm]:
    """Return the rule as it is, and with each value of its settings that ``vary`` (RULE.KEY=V,…) names. Raises
    BadSetting."""
    arms = [Arm(rule)]
    for text in vary:
        name, _, values = text.partition("=")
        owner, _, key = name.partition(".")
        try:
            numbers = [float(value) for value in values.split(",")]
        except ValueError:
            reason = f"{text!r} is not RULE.KEY=NUMBER,NUMBER"
            raise BadSetting(source="option", key="--vary", reason=reason) from None
        arms += [Arm(rule, key, number) for number in numbers if owner == rule]
    return arms


def bench_cells(
    cells: CellReplay, arms: Sequence[Arm], sizes: Sequence[int], facts: dict[str, Any], out: Path, watch: Watch
) -> BenchResult:
    """Replay every cell under every arm; raises BadSetting for a folder of another plan, StoreWriteFailed."""
    folder = RunFolder(out, facts, "measured.jsonl", CellMeasured)
    jobs = [CellJob(cell, arm) for cell in cells.cells(sizes) for arm in arms]
    measured = measure_all(jobs, cells.measure, watch, folder=folder, job_of=lambda each: each.job)
    if watch.stopped or not measured:
        return BenchResult("cells", facts, {}, interrupted=True)
    rates = Rates(measured)
    tables = _tables(rates, [arm for arm in arms if arm.rule != "fixed" or arm == NOT_DRAFTING])
    figures = {
        title: {line.pop(next(iter(line))): line for line in map(dict, lines)} for title, lines in tables.items()
    }
    return BenchResult("cells", facts, figures, tables, {"all figures": save_json(out / "bench.json", figures)})


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
