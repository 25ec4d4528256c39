"""CellReplay replayed with every ablation, and what is made of their rates."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks.cells.ablations import ABLATIONS
from benchmarks.cells.bench import CellsPlan, arms_of, bench_cells
from benchmarks.cells.cell import (
    NOT_DRAFTING,
    Arm,
    CellJob,
    CellMeasured,
    CellReplay,
    GammaCell,
    fixed_arms,
    require_arm,
)
from benchmarks.cells.summary import Rates, figures, held_out
from benchmarks.gamma.costs import find_costs
from benchmarks.gamma.rounds import Recording, write_recording
from osd.bench.harness.watch import Watch
from osd.gamma.costs import pass_times
from storage.errors import BadSetting
from storage.settings import Settings
from tests.support.traces import agreeing_trace, recording, sampled_trace

TABLES = [find_costs("a100-c008"), find_costs("h200-llama3")]


def recorded(agreement: int) -> Recording:
    """Return texts whose every ``agreement``-th token the draft gets wrong."""
    return recording(*[agreeing_trace([at % agreement != 0 for at in range(40)]) for _ in range(3)])


def cells(count: int = 3) -> CellReplay:
    plan = CellsPlan(rounds=(), out=Path(), count=count)
    return CellReplay(Settings(), {"good": recorded(6), "bad": recorded(1)}, TABLES, plan)


def test_every_arm_in_every_cell_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    recordings = {"good": recorded(6), "bad": recorded(1)}
    for name, each in recordings.items():
        write_recording(tmp_path / f"{name}.parquet", each)
    plan = CellsPlan(
        rounds=tuple(tmp_path / f"{name}.parquet" for name in recordings), out=tmp_path / "run",
        costs=("a100-c008", "h200-llama3"), vary=("goodput.share=0.05",), batch_sizes=(1, 2), count=3,
    )  # fmt: skip
    found, log = bench_cells(plan, Settings(), Watch()), tmp_path / "run" / "measured.jsonl"
    lines = log.read_text().splitlines()
    arms = [*fixed_arms(min(8, recordings["good"].depth)), Arm("goodput"), Arm("goodput", "share", 0.05)]
    assert len(lines) == 2 * 2 * 2 * len(arms)
    log.write_text("".join(line + "\n" for line in lines[:9]))
    again = bench_cells(plan, Settings(), Watch())
    known = found.figures["All 8 cells"], again.figures["All 8 cells"]
    for one, other in zip(*(each.values() for each in known), strict=True):
        assert {k: v for k, v in one.items() if "µs" not in k} == {k: v for k, v in other.items() if "µs" not in k}


def test_a_good_draft_pays_and_a_bad_one_does_not() -> None:
    some, best = cells(), Arm("fixed", "initial", 4)
    rates = {
        (pair, arm): some.measure(CellJob(GammaCell("a100-c008", pair, 1, 0.0), arm)).tokens_per_second
        for pair in ("good", "bad")
        for arm in (NOT_DRAFTING, best)
    }
    assert rates["good", best] > rates["good", NOT_DRAFTING] and rates["bad", best] < rates["bad", NOT_DRAFTING]


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_serves_a_cell_and_leaves_nothing_behind(name: str) -> None:
    bend = pass_times.BEND
    found = cells().measure(CellJob(GammaCell("h200-llama3", "good", 2, 0.0), Arm("goodput", name)))
    assert found.tokens_per_second > 0 and bend == pass_times.BEND
    require_arm(Arm("goodput", name))


def measured(rates: dict[GammaCell, dict[Arm, float]]) -> Rates:
    return Rates(
        CellMeasured(CellJob(cell, arm), rate, 1.0) for cell, arms in rates.items() for arm, rate in arms.items()
    )


def test_figures_and_values_chosen_on_others() -> None:
    one, other = Arm("goodput"), Arm("goodput", "share", 0.05)
    places = [GammaCell(table, pair, 1, 0.0) for table in ("t1", "t2", "t3") for pair in ("p1", "p2")]
    fixed = {NOT_DRAFTING: 10.0, Arm("fixed", "initial", 1): 20.0, Arm("fixed", "initial", 2): 16.0}
    # ``other`` is better wherever the table is not t1, and there it is bad
    rates = measured({
        cell: {**fixed, one: 20.0, other: 5.0 if cell.table == "t1" else 22.0} for cell in places
    })  # fmt: skip
    found = figures(rates, other, rates.cells)
    assert found["÷ best fixed: median"] == pytest.approx(1.1) and found["least"] == 0.25
    assert found["÷ not drafting: mean"] == pytest.approx(statistics.geometric_mean([0.5] * 2 + [2.2] * 4))
    assert found["below 0.97"] == 2
    chosen, _ = held_out(rates, [one, other])
    assert {cell.table: arm for cell, arm in chosen.items()} == {"t1": other, "t2": one, "t3": one}


def test_bad_input() -> None:
    with pytest.raises(BadSetting, match=r"holds 3 texts at temperature 0 and 9 are asked for"):
        cells(9)
    with pytest.raises(BadSetting, match=r"'goodput.share=x' is not RULE.KEY=NUMBER"):
        arms_of("goodput", ["goodput.share=x"])
    with pytest.raises(BadSetting, match=r"gamma.goodput.shares?"):
        require_arm(Arm("goodput", "shares", 1.0))
    assert arms_of("goodput", ["goodput.stake=8:32", "analytic.history=3"])[1:] == [
        Arm("goodput", "stake", 8.0), Arm("goodput", "stake", 32.0),
    ]  # fmt: skip


def test_sampled_texts_have_cells_of_their_own() -> None:
    both = recording(agreeing_trace([True] * 9), sampled_trace(9, 4))
    found = CellReplay(Settings(), {"both": both}, TABLES[:1], CellsPlan(rounds=(), out=Path(), count=1))
    assert [cell.temperature for cell in found.cells([1])] == [0.0, 1.0]
