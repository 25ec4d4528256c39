"""The bench for GPUs, on the CPU: every part is measured, the cost table can be read, and the last line is whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gamma.costs import CostCells, CostTable, find_costs
from benchmarks.gpu import findings
from benchmarks.gpu.bench import measure_gpu
from benchmarks.gpu.findings import SMALL, GpuPlan
from benchmarks.gpu.passes import oracle
from benchmarks.gpu.rules import ASSISTED, MORE_RULES, RULES
from benchmarks.gpu.shapes import AGREEMENT, SHAPES, random_pair
from osd.bench.harness.watch import Watch
from storage.settings import load_settings

CPU = torch.device("cpu")


@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_everything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = replace(SMALL, batches=(1,), rows=(1,), new_tokens=6, repeats=2)
    monkeypatch.setattr(findings, "SMALL", sizes)
    result = measure_gpu(GpuPlan(small=True, seconds=1e6, out=tmp_path), CPU, load_settings(), Watch())
    figures = json.loads(json.dumps(result.line(), allow_nan=False))["figures"]
    assert figures["left_out"] == []
    rates = figures["tiny batch 1"]
    wanted = {*RULES, *MORE_RULES, "alone, eager", "goodput, eager", "fixed 4, eager", "transformers"}
    assert set(rates) == wanted | {f"transformers {name}" for name in ASSISTED} and min(rates.values()) > 0
    assert figures["tiny static cache"] > 0
    assert [row["ms"] > 0 for row in figures["tiny passes"]["passes"]] == [True] * (len(sizes.widths) + 1)
    assert figures["tiny learning"]["positions_a_second"] > 0 and figures["tiny swaps"]["second_ms"] > 0
    assert figures["tiny made"]["agreement"] == pytest.approx(AGREEMENT, abs=0.02)
    costs = find_costs(str(tmp_path / "tiny-captured.json"))
    assert costs.verify_ms(1, 3) > 0 and costs.draft_ms(1, 4) > 0


def test_what_there_is_no_time_for_is_named(tmp_path: Path) -> None:
    result = measure_gpu(GpuPlan(small=True, seconds=1e-9, out=tmp_path), CPU, load_settings(), Watch())
    assert result.figures["left_out"] == ["tiny made: no time"]


@torch.inference_mode()
def test_the_draft_agrees_as_often_as_is_asked() -> None:
    pair, _ = random_pair(SHAPES["tiny"], CPU, torch.float32)
    texts = torch.randint(2, 512, (8, 200), generator=torch.Generator().manual_seed(9))
    said = [model.module(texts).logits.argmax(-1) for model in (pair.target, pair.draft)]
    assert float((said[0] == said[1]).float().mean()) == pytest.approx(AGREEMENT, abs=0.08)


def test_the_oracle_drafts_as_far_as_the_draft_is_right() -> None:
    """A draft pass takes 1 ms and the target's 10, always: with a draft that is right half the time, one token is
    expected to be drafted: 2 tokens in 11 ms."""
    costs = CostTable("x", "x", CostCells([(1, 1, 1.0)]), CostCells([(1, 1, 10.0), (1, 9, 10.0)]))
    assert oracle(costs, 1, 0.5) == pytest.approx(1e3 * 2 / 11, rel=1e-3)
    assert oracle(costs, 1, 0.0) == pytest.approx(100)
