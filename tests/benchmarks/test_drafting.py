"""`python -m benchmarks drafting`: one engine that may draft, one that does not, in turns."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.drafting import DraftingPlan, Took, bench_drafting, ratio
from osd.bench.harness.watch import Watch
from storage.settings import Settings


def test_every_arm_is_compared_with_the_engine_without_drafts() -> None:
    plan = DraftingPlan(rows=(2,), fixed=(3,), count=3, max_tokens=12, tokens=6, turns=4)
    found = bench_drafting(plan, Settings(), Watch())
    assert set(found.figures) == {"given@2", "random@2"}
    for row in found.figures.values():
        assert row["vs_alone"] > 0 and row["vs_alone_error"] >= 0 and row["best"] in ("alone", "fixed 3")
        assert row["vs_best"] <= row["vs_alone"] and row["drafted_a_round"] <= 3


def test_a_ratio_is_of_all_turns_and_its_error_is_the_jackknifes() -> None:
    one = [Took(10, 1.0, 1.0), Took(12, 1.0, 1.0), Took(8, 1.0, 2.0)]
    other = [Took(10, 2.0, 2.0), Took(10, 2.0, 2.0), Took(10, 2.0, 2.0)]
    value, error = ratio(one, other)
    assert value == pytest.approx((30 / 4) / (30 / 6))
    left = [(20 / 3) / 5, (18 / 3) / 5, (22 / 2) / 5]
    assert error == pytest.approx((statistics.pvariance(left) * 2) ** 0.5)
    assert ratio(one, one)[1] == 0 and ratio(one, other, "seconds")[0] == pytest.approx((30 / 3) / (30 / 6))
