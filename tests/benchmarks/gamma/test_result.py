"""Figures from measurements that are made up so that they can be worked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.gamma.measured import GammaMeasured
from benchmarks.gamma.plan import ALL, ORACLE, Contested, Entrant, GammaJob, GammaSetting
from benchmarks.gamma.result import Results
from benchmarks.gamma.scene import Scene
from tests.benchmarks.gamma.test_plan import PLAN

SMALL = replace(PLAN, temperatures=(0.0,), batch_sizes=(1,), turns=2, controllers=("fixed", "analytic"))
SETTING = SMALL.main("sql")
RATES = {"fixed": {0: 100, 1: 110, 4: 120, 8: 60}, "analytic": {1: 126, 4: 132, 8: 138}}
"""Tokens a second, by controller and initial gamma."""
HARDER = {0: 1.0, 1: 0.5, 2: 2.0, 3: 1.0}
"""How fast a turn is for everybody."""


def made(job: GammaJob, rate: float, **more: object) -> GammaMeasured:
    counts = {"rounds": 50, "drafted": 80, "accepted": 50, "draft_passes": 80, "target_passes": 50}
    return GammaMeasured(job=job, tokens=100, seconds=100 / rate, **(counts | more))  # type: ignore[arg-type]


def rate_of(entrant: Entrant) -> float:
    return {"oracle": 150.0}.get(entrant.name) or float(RATES.get(entrant.name, {}).get(entrant.gamma, 80))


def made_up(plan: Contested) -> Iterator[GammaMeasured]:
    for job in plan.jobs():
        yield made(job, rate_of(job.entrant) * HARDER[job.turn], digest="same")


def test_a_turn_that_is_slower_for_all_moves_nobody() -> None:
    scene = Results(SMALL, made_up(SMALL), {}).scenes[SETTING]
    level = (HARDER[0] * HARDER[1]) ** 0.5
    speed = scene.speed(Entrant("rule", "analytic", 4))
    assert speed is not None
    assert (speed.rate, speed.low, speed.high) == pytest.approx((132 * level,) * 3)


def test_a_contender_that_is_slower_in_one_turn_alone_shows_it() -> None:
    slow = Entrant("rule", "analytic", 4)
    jobs = [
        GammaJob(SETTING, entrant, turn) for turn in range(3) for entrant in [slow, *SMALL.entrants(SETTING, 0)[3:6]]
    ]
    some = [made(job, 50 if job.entrant == slow and job.turn == 1 else 100) for job in jobs]
    speed = Scene(SETTING, SMALL, some).speed(slow)
    assert speed is not None
    assert speed.low / speed.rate < 0.7 and speed.high == pytest.approx(speed.rate, rel=0.01)


def test_figures_of_a_controller() -> None:
    figures = Results(SMALL, made_up(SMALL), {}).scenes[SETTING].figures("analytic")
    assert figures["vs_best_fixed"] == pytest.approx(132 / 120)
    assert figures["vs_target_alone"] == pytest.approx(1.32)
    assert figures["vs_best_assisted"] == pytest.approx(132 / 80)
    assert figures["oracle_fraction"] == pytest.approx(132 / 150)
    assert figures["spread_over_initial_gamma"] == pytest.approx((138 - 126) / 132)
    assert figures["spread_deviation"] == pytest.approx(6 / 132)
    assert figures["mean_over_initial_gamma"] == pytest.approx(1.32)
    assert (figures["discard_rate"], figures["verification_rate"]) == (0.3, 0.5)


def test_the_spread_is_taken_over_the_turns_that_all_initial_gammas_had() -> None:
    """A lucky late turn of the usual initial gamma, which has more turns than the others, is no spread."""
    plan = replace(SMALL, turns=4)
    lucky = Entrant("rule", "analytic", 4)
    measured = [
        replace(each, seconds=each.seconds / 3) if each.job.entrant == lucky and each.job.turn == 3 else each
        for each in made_up(plan)
    ]
    swept = Results(plan, measured, {}).scenes[SETTING].over_initial("analytic")
    assert swept[4] / swept[1] == pytest.approx(132 / 126, rel=1e-9)


def test_the_last_line_has_the_promised_names_for_each_data_set_and_overall() -> None:
    line = Results(SMALL, made_up(SMALL), {}).figures()
    assert set(line["data_sets"]) == {"sql", "chat"}
    for part in (line["overall"], *line["data_sets"].values()):
        assert {"controllers", "time_model_r2", "best_fixed_gamma"} <= set(part)
        assert {
            "vs_best_fixed", "vs_best_assisted", "oracle_fraction", "discard_rate", "verification_rate",
            "spread_over_initial_gamma", "decision_us",
        } <= set(part["controllers"]["analytic"])  # fmt: skip
        assert part["best_fixed_gamma"] == {"t0_b1": 4}
        assert part["controllers"]["analytic"]["vs_best_fixed"] == 1.1
    assert line["texts_compared"] > 0 and line["texts_differing"] == 0


def test_overall_is_the_geometric_mean_over_data_sets() -> None:
    measured = [
        replace(each, seconds=each.seconds * 2)
        if each.job.setting.data_set == "chat" and each.job.entrant.name == "analytic" else each
        for each in made_up(SMALL)
    ]  # fmt: skip
    line = Results(SMALL, measured, {}).figures()
    assert line["data_sets"]["chat"]["controllers"]["analytic"]["vs_best_fixed"] == pytest.approx(0.55, abs=1e-4)
    assert line["overall"]["controllers"]["analytic"]["vs_best_fixed"] == pytest.approx(1.1 * 0.5**0.5, abs=1e-4)
    assert line["overall"]["controllers"]["analytic"]["spread_over_initial_gamma"] == pytest.approx(12 / 132, abs=1e-4)


def test_the_time_model_is_fitted_over_what_the_clock_saw() -> None:
    """A replay does not tell texts apart."""
    scene_jobs = [GammaJob(SETTING, Entrant("rule", "fixed", gamma), turn) for gamma in (0, 1, 4) for turn in (0, 1)]
    passes = [(0, 60), (0, 50), (30, 30), (25, 28), (80, 20), (90, 22)]
    some = [
        made(job, 100, draft_passes=drafts, target_passes=targets, clock_ms=0.5 * drafts + 4 * targets)
        for job, (drafts, targets) in zip(scene_jobs, passes, strict=True)
    ]
    model = Scene(SETTING, SMALL, some).time_model
    assert model is not None
    assert (model.draft_ms, model.target_ms, model.r2) == pytest.approx((0.5, 4.0, 1.0))


def test_the_time_model_is_fitted_over_texts() -> None:
    """Plain rounds of 4 ms, and a controller's own of two drafted tokens and 5.5 ms; another's odd ones fit no line."""
    plain, drafted, odd = "1,0,1,0", "1,2,3,0", "1,4,5,0"
    texts: dict[str, list[tuple[dict[str, int], float]]] = {
        "fixed": [({odd: 1}, 90.0), ({odd: 20}, 91.0)],
        "analytic": [({plain: 60}, 240.0), ({plain: 30, drafted: 8}, 164.0), ({drafted: 9}, 49.5)],
    }
    jobs = {name: GammaJob(SETTING, Entrant("rule", name, 4), 0) for name in texts}
    some = [
        made(jobs[name], 100, texts=[kinds for kinds, _ in own], texts_ms=[ms for _, ms in own])
        for name, own in texts.items()
    ]
    scene = Scene(SETTING, SMALL, some)
    model, whole = scene.time_model_of("analytic"), scene.time_model
    assert model is not None and whole is not None
    assert (model.draft_ms, model.target_ms, model.r2) == pytest.approx((0.75, 4.0, 1.0))
    assert whole.r2 < 0.9
    assert scene.time_model_of("fixed") is None, "of two texts there is nothing to be said"


def test_a_text_that_is_not_the_targets_own_is_counted() -> None:
    measured = list(made_up(SMALL))
    wrong = next(i for i, each in enumerate(measured) if each.job.entrant == ORACLE)
    measured[wrong] = replace(measured[wrong], digest="another")
    assert Results(SMALL, measured, {}).lossless()[1] == 1


def test_never_slower_is_the_ratio_to_the_target_alone() -> None:
    plan = replace(SMALL, random_draft=True)
    line = Results(plan, made_up(plan), {}).figures()
    assert line["never_slower"]["random draft, batch 32"] == {"analytic": 1.32}
    assert GammaSetting(ALL, 0.0, 32) in Results(plan, made_up(plan), {}).scenes
