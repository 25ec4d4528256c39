"""Gamma rules over recorded cells, and what is made of their rates."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks.cells import NOT_DRAFTING, CellReplay, CellsPlan, GammaCell, ReplayedCell, bench_cells, tables_of
from benchmarks.gamma.costs import find_costs
from benchmarks.gamma.rounds import Recording, write_recording
from osd.bench.harness.turns import Cell, Job
from osd.bench.harness.watch import Watch
from storage.errors import BadSetting
from storage.settings import Settings
from tests.support.traces import agreeing_trace, recording, sampled_trace

TABLES = [find_costs("a100-c008"), find_costs("h200-llama3")]


def recorded(agreement: int) -> Recording:
    """Return texts whose every ``agreement``-th token the draft gets wrong."""
    return recording(*[agreeing_trace([at % agreement != 0 for at in range(40)]) for _ in range(3)])


RECORDINGS = {"good": recorded(6), "bad": recorded(1)}


def cells(count: int = 3, **recordings: Recording) -> CellReplay:
    plan = CellsPlan(rounds=(), out=Path(), count=count, batch_sizes=(1,))
    return CellReplay(plan, Settings(), recordings or RECORDINGS, TABLES)


def test_every_arm_in_every_cell_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    for name, each in RECORDINGS.items():
        write_recording(tmp_path / f"{name}.parquet", each)
    plan = CellsPlan(
        rounds=tuple(tmp_path / f"{name}.parquet" for name in RECORDINGS), out=tmp_path / "run",
        costs=("a100-c008", "h200-llama3"), rules=("goodput", "analytic"), batch_sizes=(1, 2), count=3,
    )  # fmt: skip
    found, log = bench_cells(plan, Settings(), Watch()), tmp_path / "run" / "measured.jsonl"
    lines = log.read_text().splitlines()
    assert len(lines) == 2 * 2 * 2 * (5 + 2)  # chains of four tokens: fixed gammas from 0 to 4
    log.write_text("".join(line + "\n" for line in lines[:9]))
    again = bench_cells(plan, Settings(), Watch())
    known = found.figures["All 8 cells"], again.figures["All 8 cells"]
    for one, other in zip(*(each.values() for each in known), strict=True):
        assert {k: v for k, v in one.items() if "µs" not in k} == {k: v for k, v in other.items() if "µs" not in k}


def test_a_good_draft_pays_and_a_bad_one_does_not() -> None:
    def rate(pair: str, arm: str) -> float:
        return cells().measure(Job(GammaCell("a100-c008", pair, 1, 0.0), arm)).found.tokens_per_second

    assert rate("good", "fixed 4") > rate("good", NOT_DRAFTING) and rate("bad", "fixed 4") < rate("bad", NOT_DRAFTING)


def test_figures_are_against_the_best_fixed_gamma_and_no_drafts() -> None:
    rates = {NOT_DRAFTING: 10.0, "fixed 1": 20.0, "fixed 2": 16.0}
    measured = [
        Cell(Job(GammaCell(table, pair, 1, 0.0), arm), ReplayedCell(rate, 1.0))
        for table in ("t1", "t2", "t3") for pair in ("p1", "p2")
        for arm, rate in (rates | {"goodput": 5.0 if table == "t1" else 22.0}).items()
    ]  # fmt: skip
    told = tables_of(measured, ["goodput"])
    (found,) = [row for row in told["All 6 cells"] if row[""] == "goodput"]
    assert found["÷ best fixed: median"] == pytest.approx(1.1) and found["least"] == 0.25
    assert found["÷ not drafting: mean"] == pytest.approx(statistics.geometric_mean([0.5] * 2 + [2.2] * 4))
    assert found["below 0.97"] == 2
    assert [row["least"] for row in told["goodput by table"]] == [0.25, 1.1, 1.1]


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"holds 3 texts at temperature 0 and 9 are asked for"):
        cells(9)
    with pytest.raises(BadSetting, match=r"godput"):
        bench_cells(CellsPlan(rounds=(), out=tmp_path, rules=("godput",)), Settings(), Watch())


def test_sampled_texts_have_cells_of_their_own() -> None:
    found = cells(1, both=recording(agreeing_trace([True] * 9), sampled_trace(9, 4)))
    assert [job.place.temperature for job in found.jobs(["goodput"])] == [0.0, 1.0] * 2
