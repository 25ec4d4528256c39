"""`python -m benchmarks cells`: gamma rules over every cell of recorded pair, table of costs, batch size and
temperature, cold start included; against the best fixed gamma in hindsight and against not drafting."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from benchmarks.gamma.costs import CostTable, find_costs, profiles
from benchmarks.gamma.rounds import RecordedText, Recording, read_recording
from benchmarks.gamma.simulate import Simulator, maker_of
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import Count, facts_of
from osd.bench.harness.report import BenchResult, save_json
from osd.bench.harness.turns import Cell, Job, measure_all
from osd.bench.harness.watch import Watch
from osd.gamma.factory import RULES
from storage.errors import BadSetting
from storage.settings import Settings

MOST_FIXED = 8
"""Largest fixed gamma."""
NOT_DRAFTING = "fixed 0"
BAR = 0.97
"""Cells below this share of not drafting are counted."""


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
    batch_sizes: tuple[Count, ...] = (1, 8, 32)
    """Rows that decode together."""
    count: Count = 32
    """Requests of a cell."""
    noise: Annotated[float, Ge(0)] = 0.1
    """Standard deviation of the logarithm of timings."""
    seed: int = 0
    """Seed of noise, and of the coins of sampled texts."""


@dataclass(frozen=True, slots=True)
class GammaCell:
    """Where rules meet: one recorded pair under one table of costs."""

    table: str
    pair: str
    batch: int
    temperature: float

    def __str__(self) -> str:
        return f"{self.pair} under {self.table}, {self.batch} rows, T={self.temperature:g}"


@dataclass(frozen=True, slots=True)
class ReplayedCell:
    """What a replay came to."""

    tokens_per_second: float
    decision_us: float
    """Microseconds of processor time a decision on one row."""


CellJob = Job[GammaCell, str]
Measured = Cell[CellJob, ReplayedCell]


class CellReplay:
    """The cells of some recordings and tables, and how one is replayed."""

    def __init__(
        self, plan: CellsPlan, settings: Settings, recordings: Mapping[str, Recording], tables: Sequence[CostTable]
    ) -> None:
        """``recordings``: by the pair's name. Raises BadSetting where a recording holds fewer texts."""
        self._plan, self._settings = plan, settings
        self._tables = {table.name: table for table in tables}
        self.depth = min(recording.depth for recording in recordings.values())
        self._texts = {
            (name, warm): _mixed(name, recording, warm, plan.count)
            for name, recording in recordings.items()
            for warm in sorted({text.temperature for text in recording.traces})
        }

    def jobs(self, arms: Sequence[str]) -> Iterator[CellJob]:
        """Yield every arm in every cell. An arm is a rule, or a fixed gamma: "fixed 4"."""
        for table, (pair, warm), batch in product(self._tables, self._texts, self._plan.batch_sizes):
            yield from (Job(GammaCell(table, pair, batch, warm), arm) for arm in arms)

    def measure(self, job: CellJob) -> Measured:
        """Replay a cell with a fresh controller."""
        cell, (rule, _, gamma) = job.place, job.arm.partition(" ")
        initial = int(gamma) if gamma else min(self._settings.gamma.initial, self.depth)
        make = maker_of(self._settings, rule, initial, self.depth)
        table, plan = self._tables[cell.table], self._plan
        simulator = Simulator(make, table, batch=cell.batch, noise=plan.noise, seed=plan.seed)
        simulator.probe()
        seen = simulator.run(self._texts[cell.pair, cell.temperature])
        decision_us = seen.decision_ns / 1e3 / max(1, seen.decisions)
        return Cell(job, ReplayedCell(seen.tokens_per_second, decision_us))


def _mixed(name: str, recording: Recording, temperature: float, count: int) -> list[RecordedText]:
    """Return the first texts of the recording's data sets in turn."""
    sets = dict.fromkeys(text.data_set for text in recording.traces)
    turns = zip_longest(*(recording.of(each, temperature) for each in sets))
    texts = [text for text in chain.from_iterable(turns) if text is not None][:count]
    if len(texts) < count:
        reason = f"{name} holds {len(texts)} texts at temperature {temperature:g} and {count} are asked for"
        raise BadSetting(source="option", key="--count", reason=f"{reason}; ask for fewer, or record more")
    return texts


def bench_cells(plan: CellsPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Replay every cell under every arm; raises BadSetting for a folder of another plan, StoreWriteFailed."""
    for rule in plan.rules:
        RULES.entry(rule)
    tables = [find_costs(name) for name in plan.costs or profiles()]
    cells = CellReplay(plan, settings, {path.stem: read_recording(path) for path in plan.rounds}, tables)
    arms = [*(f"fixed {gamma}" for gamma in range(min(MOST_FIXED, cells.depth) + 1)), *plan.rules]
    facts = facts_of(plan, costs=[table.name for table in tables], arms=arms)
    folder = RunFolder(plan.out, facts, "measured.jsonl", Measured)
    measured = measure_all(cells.jobs(arms), cells.measure, watch, folder=folder)
    if watch.stopped or not measured:
        return BenchResult("cells", facts, {}, interrupted=True)
    told = tables_of(measured, plan.rules)
    figures = {title: {line.pop(next(iter(line))): line for line in map(dict, lines)} for title, lines in told.items()}
    return BenchResult("cells", facts, figures, told, {"all figures": save_json(plan.out / "bench.json", figures)})


def tables_of(measured: Iterable[Measured], rules: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rules over all cells, and each by every field of its cells."""
    cells: dict[GammaCell, dict[str, ReplayedCell]] = defaultdict(dict)
    for each in measured:
        cells[each.job.place][each.job.arm] = each.found
    whole = [{"": arm, **figures_of(arm, cells.values())} for arm in (NOT_DRAFTING, *rules)]
    tables = {f"All {len(cells)} cells": whole}
    for rule, field in product(rules, ("table", "pair", "batch", "temperature")):
        some: dict[str, list[dict[str, ReplayedCell]]] = defaultdict(list)
        for cell, arms in cells.items():
            some[str(getattr(cell, field))].append(arms)
        tables[f"{rule} by {field}"] = [{field: value, **figures_of(rule, own)} for value, own in some.items()]
    return tables


def figures_of(arm: str, cells: Collection[Mapping[str, ReplayedCell]]) -> dict[str, float]:
    """Return an arm's figures over some cells, each of which has its arms."""
    rates = [{name: each.tokens_per_second for name, each in arms.items()} for arms in cells]
    fixed = sorted(own[arm] / _best_fixed(own) for own in rates)
    alone = sorted(own[arm] / own[NOT_DRAFTING] for own in rates)
    return {
        "÷ best fixed: median": statistics.median(fixed),
        "worst tenth": fixed[len(fixed) // 10],
        "least": fixed[0],
        "mean": statistics.geometric_mean(fixed),
        "÷ not drafting: mean": statistics.geometric_mean(alone),
        "least ": alone[0],
        f"below {BAR}": sum(ratio < BAR for ratio in alone),
        "µs a decision": statistics.median(arms[arm].decision_us for arms in cells),
    }


def _best_fixed(rates: Mapping[str, float]) -> float:
    return max(rate for arm, rate in rates.items() if arm.startswith("fixed ") and arm != NOT_DRAFTING)
