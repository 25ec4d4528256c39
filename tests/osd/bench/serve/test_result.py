"""Arms are compared turn by turn, on the same prompts."""

from __future__ import annotations

from itertools import islice

import pytest

from osd.bench.harness.turns import shifted
from osd.bench.plans import ServePlan
from osd.bench.serve.load import Load
from osd.bench.serve.requests import STRIDE, jobs_of, shuffled_jobs
from osd.bench.serve.result import TRIED, Schedule, hopeless, level_line, ratio, whole_line


def turns(*rates: float, errors: tuple[str, ...] = ()) -> list[Load]:
    """A second each."""
    return [Load(tokens=rate, seconds=1.0, errors=list(errors)) for rate in rates]


def test_a_machine_that_is_slow_for_a_turn_does_not_move_the_ratio() -> None:
    slow = turns(110, 110, 55, 55, 220, 220, 111, 111, 10, 10), turns(100, 100, 50, 50, 200, 200, 100, 100, 100, 100)
    found = ratio(*slow)
    assert found.value == pytest.approx(1.1) and found.error is not None and found.error < 0.01
    assert ratio(turns(1, 2), turns(0, 0)) == (None, None)
    assert ratio(turns(3, 3, 9, 9, 8, 8), turns(1, 1, 0, 0, 2, 2)).value == 3.5  # what has nothing is none


def test_who_comes_after_a_rest_in_every_other_turn_does_not_move_the_ratio() -> None:
    after, before = turns(97, 100, 97, 100, 97), turns(100, 97, 100, 97, 97)
    assert ratio(after, before) == (1.0, 0.0)


def test_an_arm_that_is_far_behind_in_its_first_turns_rests_and_keeps_what_it_had() -> None:
    first = {"off": turns(*[100] * TRIED), "fixed": turns(*[79] * TRIED), "goodput": turns(*[70] * TRIED)}
    assert [arm for arm in first if hopeless(first, arm)] == ["fixed"]  # never the one that is compared
    assert not hopeless({**first, "fixed": first["fixed"][1:]}, "fixed")
    later = {**first, "off": [*first["off"], *turns(20, 20)], "goodput": [*first["goodput"], *turns(160, 160)]}
    assert [arm for arm in later if hopeless(later, arm)] == ["fixed"]  # what is decided stands
    assert ratio(later["goodput"], later["fixed"]) == ratio(first["goodput"], first["fixed"])


def test_the_main_arm_is_held_against_the_better_of_the_others() -> None:
    line = level_line({"off": turns(100, 100, 100), "fixed": turns(60, 60, 60), "goodput": turns(95, 99, 99)})
    assert (line["off"], line["fixed"]) == (100, 60) and line["goodput"] == pytest.approx(293 / 3)
    assert line["goodput_over_best"] == pytest.approx(0.98) and line["failed"] == 0


def test_the_whole_line_names_the_worst_level_and_every_error() -> None:
    arms = {"off": turns(10, 10, 10), "fixed": turns(8, 8, 8), "goodput": turns(11, 11, 11)}
    worse = {**arms, "goodput": turns(9, 9, 9, errors=("reset",))}
    line = whole_line({1: arms, 8: worse}, turns(10, 10, 10), 8)
    assert line["goodput_over_best_min"] == pytest.approx(0.9) and line["server_over_offline"] == pytest.approx(0.9)
    assert line["failed"] == 3 and line["errors"] == ["reset"] and line["tpot_p99_over_median_max"] is None
    assert line["by_concurrency"]["8"]["failed"] == 3 and line["offline_tokens_per_s"] == 10


def test_all_have_the_same_prompts_in_a_turn_and_others_in_the_next() -> None:
    jobs = shuffled_jobs([(i,) for i in range(200)], 7)
    assert jobs == shuffled_jobs([(i,) for i in range(200)], 7) != sorted(jobs)
    assert sorted(job.prompt for job in jobs) == [(i,) for i in range(200)]
    assert {job.tokens for job in jobs} == {4, 5, 6, 7}
    first, again, second = (list(islice(jobs_of(jobs, turn), 300)) for turn in (0, 0, 1))
    assert first == again == [*jobs, *jobs[:100]] and second[:50] == first[STRIDE : STRIDE + 50]
    orders = ["".join(shifted(["a", "b", "c"], turn)) for turn in range(7)]
    assert orders == ["abc", "cba", "bca", "acb", "cab", "bac", "abc"]


@pytest.mark.parametrize(("turns", "sittings"), [(8, [0, 0, 1, 1, 2, 2, 3, 3]), (1, [0])])
def test_all_begins_anew_several_times(turns: int, sittings: list[int]) -> None:
    plan = Schedule(ServePlan(concurrency=(1, 2, 4), seconds=9.0, turns=turns, swaps=5), rows=8)
    jobs = list(plan.jobs())
    assert plan.compared_at == 4 and [job.sitting for job in jobs if job.clients == 4] == sittings
    assert [job.number for job in jobs] == list(range(3 * turns))
    assert sorted((job.clients, job.turn) for job in jobs) == [(n, turn) for n in (1, 2, 4) for turn in range(turns)]
    swaps = [plan.swaps_in(job.number) for job in jobs]
    assert sum(swaps) == 5 and max(swaps) - min(swaps) <= 1
