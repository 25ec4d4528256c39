"""What is kept of a run, and what of it is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from osd.bench.harness.folder import RunFolder
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch
from osd.bench.plans import ServePlan
from osd.bench.serve.bench import LOG, figures_of, loads_of
from osd.bench.serve.client import Reply
from osd.bench.serve.load import Load, together
from osd.bench.serve.result import LevelTurn, Schedule, ServeTurn
from storage.errors import BadSetting

PLAN = Schedule(ServePlan(concurrency=(1, 8), seconds=8.0, turns=8, swaps=4, max_tokens=16), rows=8)


def load(rate: float) -> Load:
    made = Load(tokens=rate * 2, seconds=2.0)
    made.keep(Reply(100.0, [100.25, 100.5, 101.0], tokens=7, version="default/000002-ab"))
    made.keep(Reply(101.0, [101.5], 1, "default/000002-ab"))
    made.keep(Reply(101.0, error="refused"))
    return made


def turn(job: LevelTurn) -> ServeTurn:
    loads = {"off": load(10), "fixed": load(8), "goodput": load(12)}
    return ServeTurn(job, loads | ({"alone": load(13)} if job.clients == 8 else {}), 1, 0)


def folder(path: Path) -> RunFolder[ServeTurn]:
    return RunFolder(path, {"target": "t"}, LOG, ServeTurn)


def test_a_load_keeps_what_its_answers_say() -> None:
    kept = load(10)
    assert (kept.requests, kept.answered, kept.errors, kept.versions) == (2, 8, ["refused"], ["default/000002-ab"])
    assert (kept.ttft_ms, kept.tpot_ms, kept.gap_ms) == ([250.0, 500.0], [125.0], [250.0, 500.0])
    assert kept.rate == 10 and kept.requests_per_s == 10 * 2 / 8
    both = together([kept, load(20)])
    assert (
        both.rate == 15 and both.requests == 4 and both.ttft_ms == kept.ttft_ms * 2 and both.errors == ["refused"] * 2
    )
    assert both.percentiles()["gap_ms_p50"] == 375.0
    assert set(Load().percentiles().values()) == {None} and Load().rate == Load().requests_per_s == 0.0


def test_a_turn_comes_back_as_it_was(tmp_path: Path) -> None:
    kept = turn(next(PLAN.jobs()))
    folder(tmp_path).add(kept)
    assert folder(tmp_path).finished == [kept]


@pytest.mark.parametrize("line", ["{", "{}", "[]", '{"job": {}, "published": 0, "served": 0, "loads": {"off": {}}}'])
def test_a_line_that_is_no_turn_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / LOG).write_text(line + "\n")
    with pytest.raises(BadSetting, match="line 1 of"):
        folder(tmp_path)


def test_a_run_goes_on_with_the_turns_that_are_left(tmp_path: Path) -> None:
    asked: list[LevelTurn] = []

    def measure(job: LevelTurn) -> ServeTurn:
        if len(asked) == 11:
            raise KeyboardInterrupt
        asked.append(job)
        return turn(job)

    def run(watch: Watch) -> list[ServeTurn]:
        return measure_all(PLAN.jobs(), measure, watch, folder=folder(tmp_path))

    watch = Watch()
    done = run(watch)
    assert watch.stopped and [turn.job for turn in done] == asked == list(PLAN.jobs())[:11]
    assert {level: len(loads_of(done, level)["goodput"]) for level in (1, 8)} == {1: 6, 8: 5}
    assert len(loads_of(done, 8)["alone"]) == 5 and loads_of(done, 1)["alone"] == []
    assert figures_of(done, PLAN)["swaps"] == {"published": 11, "served": 0}
    asked.clear()
    done = run(Watch())
    assert [turn.job for turn in done] == list(PLAN.jobs()) and asked == list(PLAN.jobs())[11:]
