"""Table 1: arms, the cap on positions, errors, a run that goes on where it stopped, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.distil.bench import (
    LOG,
    DistilArm,
    DistilCell,
    DistilPlan,
    DistilResult,
    DistilSet,
    against,
    alpha,
    distil_table,
    figures_of,
    split,
    tables_of,
)
from benchmarks.distil.texts import PromptSplit, TextTest, answered
from osd.bench.harness.turns import Cell, Job
from osd.bench.harness.watch import Watch
from osd.demo import DRAFT, TARGET
from osd.demo.runner.source import demo_segments
from osd.models.pair import load_pair
from osd.prompts import encode
from storage.errors import BadInput
from storage.replay.exports import read_export
from storage.sampling import Sampling
from storage.settings import Settings, load_settings

ONE = DistilArm("TF", "forward_kl")


def cell(arm: DistilArm, accepted: list[float], positions: list[int]) -> DistilCell:
    return Cell(Job(DistilSet("sql", 0.0), arm), DistilResult(accepted, positions))


def test_the_arms_are_the_papers_columns_by_its_distances() -> None:
    arms = DistilPlan().arms
    assert [str(arm) for arm in arms[:3]] == ["Original", "FT", "TF, forward KL"] and len(arms) == 2 + 3 * 3
    assert {arm.learn["sampling"] for arm in arms if arm.draws} == {"student", "mixed"}
    for arm in arms:  # each is a setting that holds
        assert not arm.learns or Settings().changed(learn=arm.learn).learn.loss == arm.loss
    assert [arm.name for arm in DistilPlan(sampling=("SF",), loss=("jsd",)).arms] == ["Original", "FT", "SF"]


def test_errors_are_over_texts_and_of_differences_on_the_same_ones() -> None:
    one = cell(ONE, [4.0, 1.0, 7.0], [8, 4, 8])
    other = cell(DistilArm("FT", "cross_entropy"), [3.0, 1.0, 5.0], [8, 4, 8])
    assert alpha(one).value == 12 / 20
    squares = [(a - 0.6 * m) ** 2 for a, m in zip([4.0, 1.0, 7.0], [8, 4, 8], strict=True)]
    assert alpha(one).error == pytest.approx(math.sqrt(1.5 * sum(squares)) / 20)
    apart = [(d + 0.15 * m) ** 2 for d, m in zip([-1.0, 0.0, -2.0], [8, 4, 8], strict=True)]
    less = against([one, other], other)
    assert less and less.error == pytest.approx(math.sqrt(1.5 * sum(apart)) / 20)
    figures = figures_of([one, other])["cells"]
    assert "against_tf" not in figures[0] and figures[1]["against_tf"] == pytest.approx(-0.15)
    ((title, rows),) = tables_of([one, other]).items()
    assert "greedy" in title and rows[0]["sql"].startswith("0.600 ± ") and "(-0.150 ± " in rows[1]["sql"]


def test_too_few_prompts_are_refused() -> None:
    with pytest.raises(BadInput, match="sql has 3 different prompts that fit, and 3 of them are to test on"):
        split({"sql": [(1,), (2,), (3,)]}, 3)
    assert split({"sql": [(1,), (2,), (3,)]}, 1)["sql"] == PromptSplit([(1,), (2,)], [(3,)])


@pytest.mark.long
def test_a_small_table_and_how_it_goes_on(tmp_path: Path) -> None:
    """Two arms at one temperature: texts within the cap, the learned draft better, nothing measured twice. The second
    draws its texts with the target, in the trainer's process."""
    pair, settings = load_pair(str(TARGET), str(DRAFT)), load_settings(learn={"learning_rate": 3e-3})
    (sql,) = demo_segments(30, domains=("sql",))
    file = tmp_path / "sql.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in dict.fromkeys(sql.prompts)))
    plan = DistilPlan(
        prompts=(str(file),), requests=22, test_requests=6, positions=300, max_tokens=24, temperature=(0.0,),
        out=tmp_path,
    )  # fmt: skip
    arms = [DistilArm("Original"), DistilArm("MixF", "forward_kl")]

    def cells() -> list[DistilCell]:
        return distil_table(plan, arms, pair, settings, Watch())[1]

    first = cells()
    original, learned = first
    samples = [each for batch in read_export(tmp_path / "sql-0" / "learn.parquet") for each in batch]
    assert 300 <= sum(map(len, samples)) < 300 + 24 and 300 < learned.found.trained <= 2 * sum(map(len, samples))
    assert alpha(learned).value > alpha(original).value + 0.02
    lines = (tmp_path / LOG).read_text().splitlines()
    (tmp_path / LOG).write_text(lines[0] + "\n" + lines[1][:40])  # killed in the middle of a line
    again = cells()
    assert [c.found.accepted for c in again] == [c.found.accepted for c in first]
    assert not (tmp_path / "sql-0" / "draft").exists()


def test_sampled_texts_are_repeated_and_read_by_what_would_be_accepted(tmp_path: Path) -> None:
    pair, settings = load_pair(str(TARGET), str(DRAFT)), load_settings()
    prompts = [encode(pair.tokenizer, text) for text in ("Say hello.", "What is 2 + 2?", "Name a colour.")]
    sampling = Sampling(1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
    first, second = (
        answered(pair, settings, PromptSplit(prompts[:2], prompts[2:]), sampling, 12, 100, tmp_path / name)
        for name in ("one", "two")
    )
    assert [s.tokens.tolist() for s in first.test] == [s.tokens.tolist() for s in second.test]
    test = TextTest(pair.target, first.test, sampling)
    (own,), (drafted,) = test.accepted(pair.target), test.accepted(pair.draft)
    assert own == pytest.approx(test.positions[0], rel=1e-4) and 0 < drafted < own
