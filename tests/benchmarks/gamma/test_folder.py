"""What a run keeps so that it can go on."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.gamma.bench import MEASURED
from benchmarks.gamma.measured import GammaMeasured
from benchmarks.gamma.plan import Contested, GammaJob
from osd.bench.harness.folder import PLAN as PLAN_FILE
from osd.bench.harness.folder import RunFolder
from storage.errors import BadSetting
from tests.benchmarks.gamma.test_plan import PLAN


def run_folder(path: Path, plan: Contested) -> RunFolder[GammaMeasured]:
    return RunFolder(path, asdict(plan), MEASURED, GammaMeasured)


def some() -> list[GammaMeasured]:
    jobs: list[GammaJob] = list(PLAN.jobs())[:3]
    return [
        GammaMeasured(job, 10 + i, 0.5, rounds=4, drafted=9, accepted=6, clock_ms=1.25) for i, job in enumerate(jobs)
    ]


def test_measurements_come_back_as_they_were(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", PLAN)
    for each in some():
        folder.add(each)
    assert run_folder(tmp_path / "run", PLAN).finished == some()


def test_the_half_line_of_a_killed_run_is_cut_off(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, PLAN)
    for each in some():
        folder.add(each)
    text = (tmp_path / MEASURED).read_text()
    (tmp_path / MEASURED).write_text(text[:-20])
    again = run_folder(tmp_path, PLAN)
    assert again.finished == some()[:2]
    again.add(some()[2])
    assert run_folder(tmp_path, PLAN).finished == some()


def test_another_plan_in_the_folder_is_refused_and_named(tmp_path: Path) -> None:
    run_folder(tmp_path, PLAN)
    with pytest.raises(BadSetting, match=r"max_tokens is 16 there and 32 now"):
        run_folder(tmp_path, replace(PLAN, max_tokens=32))


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_plan_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / PLAN_FILE).write_text(text)
    with pytest.raises(BadSetting, match="holds another run"):
        run_folder(tmp_path, PLAN)


def test_a_line_that_is_no_measurement_is_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, PLAN)
    folder.add(some()[0])
    with (tmp_path / MEASURED).open("a") as log:
        log.write('{"job": 1}\n')
    with pytest.raises(BadSetting, match="line 2 of"):
        run_folder(tmp_path, PLAN)
