"""Measurements told by what rounds of their kinds usually take."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.gamma.measured import GammaMeasured, told, usual_ms
from benchmarks.gamma.plan import Entrant, GammaJob
from benchmarks.gamma.result import Results
from tests.benchmarks.gamma.test_result import SETTING, SMALL, made_up

PLAIN, DRAFTED, RARE = "1,0,1,0", "1,2,3,0", "1,4,5,0"
COSTS = {PLAIN: 4.0, DRAFTED: 7.0, "1,1,2,0": 5.5}


def measured(
    name: str, kinds: dict[str, int], *, turn: int = 0, slow: float = 1.0, decisions_ms: float = 0.0
) -> GammaMeasured:
    """One whose machine was ``slow`` times as slow; 50 ms went to reading the prompt."""
    took = {kind: [slow * COSTS.get(kind, 10.0)] * count for kind, count in kinds.items()}
    seconds = (slow * 50 + sum(map(sum, took.values())) + decisions_ms) / 1000
    job = GammaJob(SETTING, Entrant("rule", name, 1), turn)
    return GammaMeasured(job=job, tokens=100, seconds=seconds, decision_ns=int(1e6 * decisions_ms), took_ms=took)


def test_a_machine_that_was_slow_for_one_of_them_moves_nobody() -> None:
    mixed = {DRAFTED: 20, PLAIN: 30}
    calm = [measured("fixed", {DRAFTED: 40}), measured("analytic", mixed), measured("fsm", {PLAIN: 60})]
    slow = [calm[0], measured("analytic", mixed, slow=1.4), calm[2]]
    assert [each.seconds for each in told(slow)] == pytest.approx([each.seconds for each in calm])
    assert told(slow)[1].clock_ms == pytest.approx(20 * 7 + 30 * 4)


def test_the_time_of_decisions_is_each_ones_own() -> None:
    quick, long = told([measured("fixed", {DRAFTED: 40}), measured("goodput", {DRAFTED: 40}, decisions_ms=8)])
    assert long.seconds - quick.seconds == pytest.approx(0.008)


def test_rounds_in_which_a_request_came_in_count_as_others_of_their_kind() -> None:
    """Whatever else happened in them is outside, with the prompt's reading."""
    before = measured("fixed", {DRAFTED: 40})
    again = replace(measured("analytic", {DRAFTED: 39}), first={DRAFTED: 1}, seconds=before.seconds)
    assert told([before, again])[1].seconds == pytest.approx(before.seconds)


def test_no_time_is_below_zero_though_first_rounds_were_faster_than_usual() -> None:
    slow = replace(measured("fixed", {DRAFTED: 40}, slow=50.0), job=GammaJob(SETTING, Entrant("rule", "fixed", 1), 1))
    quick = replace(measured("goodput", {PLAIN: 5}), first={DRAFTED: 1}, seconds=0.04)
    plain = replace(measured("analytic", {PLAIN: 5}), seconds=0.021)
    assert min(each.seconds for each in told([slow, quick, plain])) > 0.0


def test_a_kind_that_is_rare_is_read_off_those_that_are_not() -> None:
    """A round of four drafted tokens that was interrupted for 100 ms."""
    common = {PLAIN: 30, "1,1,2,0": 30, DRAFTED: 30}
    held_up = measured("goodput", {**common, RARE: 1})
    held_up.took_ms[RARE][0] = 110.0
    usual = usual_ms([measured("fixed", common), held_up])
    assert usual[RARE] == pytest.approx(10.0), "4 ms and 1.5 for each token and pass"


def test_reading_costs_so_much_a_token_in_whatever_round_it_falls() -> None:
    """Two late drafts of other lengths tell 0.01 ms a token, and it counts where a request came in, too."""
    late = measured("goodput", {PLAIN: 30, DRAFTED: 30})
    late.took_ms.update({"1,2,3,200": [9.0], "1,2,3,96": [7.96]})
    always = replace(measured("fsm", {DRAFTED: 30}), first={"1,2,3,400": 2}, seconds=0.05 + 32 * 0.007 + 0.008)
    usual = usual_ms([late, always])
    assert usual["1,2,3,400"] == pytest.approx(11.0) and usual[DRAFTED] == 7.0
    calm, reading = told([measured("fixed", {DRAFTED: 32}), always, late])[:2]
    assert reading.seconds - calm.seconds == pytest.approx(0.008)


def test_a_text_takes_what_its_rounds_usually_take() -> None:
    slow = measured("analytic", {PLAIN: 3, DRAFTED: 2}, slow=2.0)
    slow = replace(slow, texts=[{PLAIN: 2, DRAFTED: 1}, {PLAIN: 1, DRAFTED: 1}])
    calm = measured("fixed", {PLAIN: 30, DRAFTED: 30})
    assert told([slow, calm])[0].texts_ms == pytest.approx([2 * 4.0 + 7.0, 4.0 + 7.0])


def test_who_was_not_decoded_by_osd_is_told_by_how_slow_its_turn_was() -> None:
    slow = [measured(name, {DRAFTED: 40}, slow=1.5, turn=1) for name in ("fixed", "analytic")]
    usual = [measured(name, {DRAFTED: 40}, turn=turn) for name in ("fixed", "analytic") for turn in (0, 2)]
    jobs = [GammaJob(SETTING, Entrant("assisted", "constant"), turn) for turn in (0, 1)]
    assisted = [GammaMeasured(job=job, tokens=100, seconds=s) for job, s in zip(jobs, (1, 1.5), strict=True)]
    found = {(each.job.entrant.name, each.job.turn): each.seconds for each in told([*usual, *slow, *assisted])}
    assert found["constant", 0] == pytest.approx(1.0) and 1.0 < found["constant", 1] < 1.1


def test_what_was_not_timed_by_rounds_stays_as_it_is() -> None:
    some = list(made_up(SMALL))
    assert told(some) == some


def test_noise_of_single_measurements_leaves_ratios_within_half_a_per_cent() -> None:
    """Five contenders that do the same, on a machine whose speed doubles and halves: by the clock they differ."""
    chance, plan = random.Random(0), replace(SMALL, turns=4)
    some = []
    for job in plan.jobs():
        planner = chance.choice((1.0, 1.2, 1.5))
        kinds = {DRAFTED: 40, PLAIN: 20}
        each = measured(job.entrant.name, kinds, slow=planner)
        took = {
            kind: [planner * COSTS[kind] * chance.lognormvariate(0, 0.1) for _ in range(count)]
            for kind, count in kinds.items()
        }
        some.append(replace(each, job=job, took_ms=took, seconds=0.05 + sum(map(sum, took.values())) / 1000))
    results = Results(plan, some, {})
    by_rounds, by_clock = (scenes[SETTING].over_initial("analytic") for scenes in (results.scenes, results.clock))
    assert max(by_rounds.values()) / min(by_rounds.values()) < 1.005 < max(by_clock.values()) / min(by_clock.values())
    assert results.figures()["data_sets"]["sql"]["by_clock"]["analytic"]["vs_best_fixed"] != 1.0
