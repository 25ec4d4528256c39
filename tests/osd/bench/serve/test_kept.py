"""What is kept of a run, and what of it is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from osd.bench.harness.folder import RunFolder
from osd.bench.serve.bench import Bench
from osd.bench.serve.client import Reply, ServeJob
from osd.bench.serve.kept import ServeTurn, folder_of, line_of, turn_of
from osd.bench.serve.load import Load
from osd.bench.serve.plan import ServePlan

PLAN = ServePlan(levels=[1, 8], seconds=8.0, turns=8, swaps=4, max_tokens=16)
JOBS = [ServeJob((1, 2, 3), 4)]


def load(rate: float) -> Load:
    reply = Reply(100.0, [100.25, 100.5, 101.0], tokens=7, version="default/000002-ab")
    return Load([reply, Reply(101.0, [101.5], 1)], ["refused"], tokens=rate * 2, seconds=2.0)


def turn(level: int, published: int = 0) -> ServeTurn:
    loads = {"off": load(10), "fixed": load(8), "goodput": load(12)}
    return ServeTurn(level, loads | ({"alone": load(13)} if level == 8 else {}), published, published)


def bench(folder: RunFolder[ServeTurn] | None) -> Bench:
    return Bench(JOBS, PLAN, 8, lambda text: None, folder)


def test_a_turn_comes_back_as_it_was_but_for_when_it_began() -> None:
    again = turn_of(line_of(turn(8, 3)))
    assert (again.level, again.published, again.served) == (8, 3, 3)
    for arm, before in turn(8).loads.items():
        after = again.loads[arm]
        assert (after.rate, after.errors) == (before.rate, before.errors)
        assert after.percentiles() == pytest.approx(before.percentiles())
        assert [r.version for r in after.replies] == [r.version for r in before.replies]
        assert [r.tokens for r in after.replies] == [7, 1]


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"level": 1, "published": 0, "served": 0, "loads": {"off": {}}}'])
def test_a_line_that_is_no_turn_is_none(line: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        turn_of(line)


def test_a_run_goes_on_with_the_turns_that_are_left(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, PLAN, {"target": "t"})
    assert bench(folder).sittings() == PLAN.sittings(8) == [[(1, 8), (8, 2)], [(8, 2)], [(8, 2)], [(8, 2)]]
    for _ in range(5):
        folder.add(turn(1, published=1))
    again = bench(folder_of(tmp_path, PLAN, {"target": "t"}))
    assert again.sittings() == [[(1, 3), (8, 2)], [(8, 2)], [(8, 2)], [(8, 2)]]
    for _ in range(3):
        folder.add(turn(1, published=2))
    for _ in range(3):
        folder.add(turn(8, published=3))
    again = bench(folder_of(tmp_path, PLAN, {"target": "t"}))
    assert again.sittings() == [[(8, 1)], [(8, 2)], [(8, 2)]]
    assert (again.turns, again.published, again.served) == (11, 3, 3)
    assert {level: len(arms["goodput"]) for level, arms in again.found.items()} == {1: 8, 8: 3}
    assert len(again.alone) == 3
    for _ in range(5):
        folder.add(turn(8, published=4))
    assert bench(folder_of(tmp_path, PLAN, {"target": "t"})).sittings() == []
