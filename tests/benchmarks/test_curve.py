"""`python -m benchmarks curve`: points that are kept, answers that are recorded once, and laws."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.curve import CurvePlan, Taught, asked
from benchmarks.curve_law import LATER, laws_of, line, saturating
from benchmarks.eagle.learn import recorded, text_of
from benchmarks.figures import PaperFigure
from osd.bench.harness.watch import Watch
from tests.support.chat_templates import tokenizer
from tests.support.models import prompts, random_pair
from tests.support.settings import settings_of

NUMBERS = np.array([300.0, 600.0, 1200.0, 2500.0, 5000.0])


def written(folder: Path, name: str, count: int) -> str:
    path = folder / f"{name}.jsonl"
    rows = [{"prompt": f"{name} says {number}", "response": f"{number} it is"} for number in range(count)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def test_data_sets_take_turns_and_more_prompts_begin_with_the_same(tmp_path: Path) -> None:
    files = [written(tmp_path, "one", 3), written(tmp_path, "two", 9)]
    all_of, few = (asked(tokenizer(), files, count, 64, 0) for count in (99, 5))
    assert len(all_of) == len({one.prompt for one in all_of}) == 12 and all_of[:5] == few
    names = [tokenizer().decode(one.prompt).count("one says") for one in all_of]
    assert names == [1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0] and all(one.own.endswith("it is") for one in all_of)


def test_answers_are_recorded_once_and_a_part_that_lacks_some_anew(tmp_path: Path) -> None:
    pair, settings, some = random_pair(), settings_of(serve__max_length=64), prompts(5, seed=1, longest=8)
    few = recorded(pair, settings, some[:3], 6, tmp_path, Watch())
    first = (tmp_path / "0.parquet").stat().st_mtime_ns
    again = recorded(pair, settings, some[:3], 6, tmp_path, Watch())
    assert (tmp_path / "0.parquet").stat().st_mtime_ns == first
    more = recorded(pair, settings, some, 6, tmp_path, Watch())
    for ours, theirs in ((few, again), (few, more[:3])):
        assert [one.tokens.tolist() for one in ours] == [one.tokens.tolist() for one in theirs]
    assert len(more) == 5 and len({one.request_id for one in more}) == 5 and more[0].k == 0


def test_a_text_alone_has_every_token_of_the_answer_as_a_position() -> None:
    text = text_of((5, 6, 7), [8, 9])
    assert text.tokens.tolist() == [5, 6, 7, 8, 9] and text.positions.tolist() == [3, 4] and text.prompt_len == 3


def test_laws_find_what_points_were_made_of() -> None:
    straight, bent = 0.1 + 0.03 * np.log(NUMBERS), 0.6 - 2.0 * NUMBERS**-0.3
    assert line(NUMBERS, straight)[1] == pytest.approx({"a": 0.1, "b": 0.03})
    law, numbers = saturating(NUMBERS, bent)
    assert numbers == pytest.approx({"a": 0.6, "b": 2.0, "c": 0.3}, rel=0.02)
    assert law(np.array([float(LATER)]))[0] == pytest.approx(0.6 - 2.0 * LATER**-0.3, abs=0.002)
    points = [(int(n), PaperFigure(float(value))) for n, value in zip(NUMBERS, bent, strict=True)]
    power, log = laws_of(points)
    assert power["left out, off by"] < 0.002 < log["left out, off by"] and power["least"] <= power["most"]
    assert laws_of(points[:4]) == []


def test_ways_are_tried_beside_the_curves_own_and_points_are_no_part_of_the_folders_plan() -> None:
    plan = CurvePlan(out=Path("x"), points=(8, 16), ways=("one-step",), at=(16,))
    assert plan.jobs == [Taught("default", 8), Taught("default", 16), Taught("default+one-step", 16)]
    assert plan.facts == CurvePlan(out=Path("y"), points=(32,)).facts


def test_a_way_that_is_not_there_is_named(bench) -> None:
    done = bench("curve", "--ways", "wrong", "--out", "curve")
    assert done.exit_code == 2 and "'wrong' is none of" in done.stderr


@pytest.mark.long
def test_drafts_learn_are_judged_and_kept(bench, tmp_path: Path) -> None:
    files = ",".join([written(tmp_path, "one", 30), written(tmp_path, "two", 30)])
    sizes = ("--judges", 8, "--max-tokens", 12, "--longest", 64, "--out", "curve")
    few = ("curve", "--prompts", files, *sizes, "--points", "8")
    done = bench(*few)
    assert done.exit_code == 0, done.stderr
    again = bench(*few, "--ways", "own-answers,rate-2,dflash", "--at", "8", "--decode", files)
    assert again.exit_code == 0, again.stderr
    (first,), rows = (json.loads(each.stdout.splitlines()[-1])["figures"]["drafts"] for each in (done, again))
    assert rows[0] == first and first["steps"] > 0 and 0 <= first["acceptance"] <= 1
    assert [row["way"] for row in rows] == [
        "default",
        *(f"default+{way}" for way in ("own-answers", "rate-2", "dflash")),
    ]
    assert all("its error" in row for row in rows[1:]) and (tmp_path / "curve" / "curve.png").exists()
    decoded = json.loads(again.stdout.splitlines()[-1])["figures"]["decoded"]
    assert [row["drafts"] for row in decoded] == ["causal", "tree"] and decoded[0]["tokens_a_round"] >= 1
