"""The harness: order of turns, a folder in which a stopped run goes on, figures, lists, prompts, the last line."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from rich.progress import Progress

from osd.bench.harness import report
from osd.bench.harness.folder import PLAN, RunFolder
from osd.bench.harness.prompts import listed, numbers, texts_by_set, tokens_by_set
from osd.bench.harness.report import BenchResult, shown
from osd.bench.harness.turns import Cell, measure_all, median_error, ratio_of_turns, shifted
from osd.bench.harness.watch import Watch
from storage.errors import BadInput, BadSetting


def test_every_arm_is_first_and_last_as_often() -> None:
    arms = ["a", "b", "c"]
    orders = [shifted(arms, turn) for turn in range(6)]
    assert all(sorted(order) == arms for order in orders)
    assert Counter(order[0] for order in orders) == Counter(order[-1] for order in orders) == dict.fromkeys(arms, 2)


def opened(path: Path, facts: dict[str, object] | None = None) -> RunFolder[Cell[str, int]]:
    return RunFolder(path, facts or {"plan": 1}, "log.jsonl", Cell[str, int])


def run(path: Path, stop_at: str | None = None) -> tuple[dict[str, int], list[str], bool]:
    measured: list[str] = []

    def measure(job: str) -> Cell[str, int]:
        if job == stop_at:
            raise KeyboardInterrupt
        measured.append(job)
        return Cell(job, len(job))

    watch = Watch()
    found = measure_all(["a", "bb", "ccc"], measure, watch, folder=opened(path))
    return {cell.job: cell.found for cell in found}, measured, watch.stopped


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    assert run(tmp_path, stop_at="bb") == ({"a": 1}, ["a"], True)
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"job": "bb", ')  # killed while it wrote
    assert run(tmp_path) == ({"a": 1, "bb": 2, "ccc": 3}, ["bb", "ccc"], False)
    assert run(tmp_path)[1] == []
    with pytest.raises(BadSetting, match="holds another run: plan is 1 there and 2 now"):
        opened(tmp_path, {"plan": 2})


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_plan_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / PLAN).write_text(text)
    with pytest.raises(BadSetting, match="holds another run"):
        opened(tmp_path)


def test_a_line_that_is_no_measurement_is_named(tmp_path: Path) -> None:
    opened(tmp_path).add(Cell("a", 1))
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"job": 1}\n')
    with pytest.raises(BadSetting, match="line 2 of"):
        opened(tmp_path)


def test_ratios_are_those_of_turns_with_the_error_of_their_median() -> None:
    """A machine that is half as fast in one turn moves no ratio."""
    ratio = ratio_of_turns([11.0, 5.5, 11.0], [10.0, 5.0, 10.0], [9.0, 4.0, 10.0])
    assert ratio.value == pytest.approx(1.1) and ratio.error == pytest.approx(0.0)
    assert ratio_of_turns([1.0], []) == (None, None)
    assert median_error([1.0, 2.0, 3.0, 4.0, 100.0]) < 3


def test_a_list_may_be_repeated_and_divided_by_commas() -> None:
    assert listed(["a,b", "c", "a"]) == ["a", "b", "c"] and listed(None) == []
    assert numbers(["1,8", "2"], "--batch", int, 1) == (1, 8, 2)
    for bad in (["x"], ["0"], [""], ["inf"]):
        with pytest.raises(BadSetting, match="--batch"):
            numbers(bad, "--batch", float, 1.0)


def test_prompts_come_by_data_set_and_broken_lines_are_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text('{"prompt": "first"}\nbroken\n{"prompt": "second"}\n{"prompt": "third"}\n')
    two.write_text('{"prompt": "other"}\n')
    assert texts_by_set([f"{one},{two}"], 2) == {"one": ["first", "second"], "two": ["other"]}
    assert "line 2" in capsys.readouterr().err
    assert set(texts_by_set([str(one)], 2, seed=1)["one"]) < {"first", "second", "third"}
    assert all(len(texts) == 3 for texts in texts_by_set(None, 3).values())
    two.write_text("\n")
    with pytest.raises(BadInput, match="has no prompt"):
        texts_by_set([str(two)], 2)


def test_prompts_that_are_too_long_are_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shipped_tokenizer: object
) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"prompt": "SELECT " * 50}) + "\n" + json.dumps({"prompt": "SELECT name"}) + "\n")
    assert [len(found) for found in tokens_by_set(shipped_tokenizer, [str(path)], 2, 20).values()] == [1]
    assert "1 of 2 prompts of set are left out" in capsys.readouterr().err
    with pytest.raises(BadInput, match="no prompt of 1 tokens"):
        tokens_by_set(shipped_tokenizer, [str(path)], 2, 1)


@pytest.fixture
def shipped_tokenizer() -> object:
    from osd.demo import TARGET
    from osd.models.vocabulary import load_tokenizer

    return load_tokenizer(TARGET)


def test_the_last_line_has_one_shape(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [{"arm": "a", "tok/s": 1234.5}, {"arm": "b", "tok/s": None}]
    result = BenchResult("decode", {"turns": 2}, {"rate": math.nan}, {"rates": rows}, {"picture": tmp_path})
    assert result.show() == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1]) == {
        "bench": "decode", "settings": {"turns": 2}, "figures": {"rate": None}, "files": {"picture": str(tmp_path)},
        "interrupted": False,
    }  # fmt: skip
    assert "1,234" in printed.out and f"picture: {tmp_path}" in printed.err
    assert BenchResult("decode", {}, {}, interrupted=True).show(as_json=True) == 130
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_numbers_are_shown_with_three_digits() -> None:
    assert [shown(v) for v in (1234.5, 0.98765, 12.345, 7, None, True)] == ["1,234", "0.988", "12.3", "7", "–", "True"]


def test_numbers_of_a_narrow_table_are_never_broken_in_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "WIDE", 30)
    report.print_rows("γ", [{"controller": "a name that is folded", "1": 12, "2": 24.5, "3": 345}])
    shown = capsys.readouterr().out
    assert all(number in shown.split() for number in ("12", "24.5", "345")), shown


def test_work_within_a_job_moves_the_bar_by_what_the_job_is_worth() -> None:
    bar = Progress(disable=True)
    watch, seen = Watch(bar), []

    def part(name: str) -> str:
        seen.append(bar.tasks[0].percentage)
        return name

    def measure(job: str) -> str:
        measure_all("ab", part, watch)
        watch.begin(2)  # nothing is left of the job
        watch.did(2)
        return job

    worth = {"long": 3.0, "short": 1.0}
    assert measure_all(worth, measure, watch, work=worth.__getitem__) == ["long", "short"]
    assert seen == [0, 37.5, 75, 87.5] and bar.tasks[0].percentage == 100
