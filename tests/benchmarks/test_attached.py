"""`python -m benchmarks attached`: what its turns come to. The run itself needs a vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.vllm.attached import AttachedBlock, AttachedPlan, figures_of


def test_ratios_stand_by_hundreds_with_what_the_engine_says() -> None:
    plan = AttachedPlan(vllm=Path("python"), out=Path("out"), answers=160, block=50)
    told = {"gain": 1.2, "error": 0.1, "accepted": 0.5}
    blocks = [
        AttachedBlock(90, 100, 50, 3, 1.0, {}),
        AttachedBlock(110, 100, 50, 3, 2.0, told),
        AttachedBlock(120, 100, 49, 9, 0.0, told, 95.0),
    ]
    found = figures_of(blocks, plan)
    assert found["ratio"] == pytest.approx((0.9 + 1.1 + 1.2) / 3) and found["ratio_error"] > 0
    first, last = found["hundreds"]
    assert (first["from"], first["same"], first["told"]) == (0, 100, 1.2) and first["ratio"] == pytest.approx(1.0)
    assert last["ratio"] == pytest.approx(1.2) and last["error"] is None and found["same_ids"] == 149
    assert found["trained_seconds"] == 3.0 and found["answers"] == 150
    assert found["control"] == pytest.approx(0.95)
