"""Who decodes what, and in which order."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise

import pytest

from benchmarks.gamma.plan import (
    ALL,
    ALONE,
    MIX,
    ORACLE,
    Contested,
    Entrant,
    GammaPlan,
    GammaSetting,
)
from osd.gamma.factory import CONTROLLERS
from storage.errors import BadSetting
from tests.support.settings import settings_of

PLAN = Contested(
    target="t", draft="d", data_sets=("sql", "chat"), prompts_digest="", controllers=("fixed", "analytic", "fsm"),
    initial=4, initial_gammas=(1, 4, 8), temperatures=(0.0, 1.0), batch_sizes=(1, 8), count=2, max_tokens=16, turns=4,
)  # fmt: skip
MAIN = GammaSetting("sql", 0.0, 1)


def test_entrants_take_turns_and_nobody_decodes_twice_in_one() -> None:
    jobs = list(PLAN.jobs())
    assert len(set(jobs)) == len(jobs)
    rings = [[job.entrant for job in ring] for _, ring in groupby(jobs, key=lambda job: (job.setting, job.turn))]
    assert all(len(set(ring)) == len(ring) and ALONE in ring for ring in rings)
    assert len(rings) == 2 * 4 + 6 * 2  # the main settings have all turns, the six others half of them


def test_another_begins_each_turn() -> None:
    """Who is first reads prompts whose lengths are new, which takes longer."""
    turns = [[job.entrant for job in PLAN.jobs() if (job.setting, job.turn) == (MAIN, turn)] for turn in range(4)]
    assert all(one[0] != next_[0] for one, next_ in pairwise(turns)) and len({ring[0] for ring in turns}) >= 3
    assert all(sorted(map(str, ring)) == sorted(map(str, PLAN.entrants(MAIN, i))) for i, ring in enumerate(turns))


def test_only_the_main_setting_sweeps_initial_gammas_and_has_transformers_modes() -> None:
    main, other = PLAN.entrants(MAIN, 0), PLAN.entrants(GammaSetting("sql", 0.0, 8), 0)
    fixed = [Entrant("rule", "fixed", gamma) for gamma in (1, 4, 8)]
    usual = [ALONE, Entrant("rule", "analytic", 4), Entrant("rule", "fsm", 4), *fixed, ORACLE]
    assert other == usual
    assert main[: len(usual)] == usual
    assert {entrant.kind for entrant in main[len(usual) :]} == {"assisted", "rule"}
    swept = {(entrant.name, entrant.gamma) for entrant in main if entrant.name in ("analytic", "fsm")}
    assert swept == {(name, gamma) for name in ("analytic", "fsm") for gamma in (1, 4, 8)}
    assert ORACLE not in PLAN.entrants(GammaSetting("sql", 1.0, 1), 0)


def test_the_sweep_takes_half_of_the_turns() -> None:
    swept = Entrant("rule", "fsm", 8)
    assert [swept in PLAN.entrants(MAIN, turn) for turn in range(5)] == [True, True, False, False, False]
    assert [len(PLAN.entrants(GammaSetting("sql", 0.0, 8), turn)) > 0 for turn in range(3)] == [True, True, False]


def test_turns_of_a_setting_decode_different_prompts_and_warming_up_others_again() -> None:
    for setting in PLAN.settings():
        turns = [PLAN.turn_prompts(setting, turn) for turn in range(PLAN.turns_of(setting))]
        seen = [each for turn in [*turns, PLAN.warm_prompts(setting)] for each in turn]
        assert len(set(seen)) == len(seen)
        assert all(len(turn) >= setting.batch for turn in turns)
    assert PLAN.prompts_needed() == 24  # batch 8: two turns of eight, and eight to warm up


def test_the_mix_changes_its_domain_after_so_many_requests() -> None:
    plan = replace(PLAN, mix=20)
    setting = plan.main(MIX)
    jobs = [job for job in plan.jobs() if job.setting == setting and job.entrant == ALONE]
    stream = [name for job in jobs for name, _ in plan.turn_prompts(setting, job.turn, job.part)]
    assert stream == ["sql"] * 20 + ["chat"] * 20


def test_a_random_draft_is_held_against_the_target_alone_also_in_large_batches() -> None:
    plan = replace(PLAN, random_draft=True)
    added = [setting for setting in plan.settings() if setting.data_set == ALL]
    assert [(s.batch, s.draft) for s in added] == [(1, "random"), (8, "random"), (32, "random"), (32, "given")]
    assert plan.entrants(added[0], 0) == [ALONE, Entrant("rule", "analytic", 4), Entrant("rule", "fsm", 4)]
    assert plan.turn_prompts(added[0], 0) == [("sql", 0), ("chat", 0)]


def asked(*controllers: str, gammas: tuple[int, ...] = (1, 4), initial: int = 4) -> Contested:
    plan = GammaPlan(controllers=controllers or ("all",), initial_gammas=gammas)
    return Contested.of(plan, settings_of(gamma__initial=initial).gamma)


def test_controllers_are_chosen_by_name() -> None:
    assert asked("all").controllers == asked("fsm", "all").controllers == tuple(CONTROLLERS)
    assert asked("fsm", "analytic", "fsm").controllers == ("fsm", "analytic")
    for unknown in (("fms",), ("analytic", "fms"), ("",)):
        with pytest.raises(BadSetting, match=r"--controllers: '(fms|)' is none of all, .*fixed, analytic"):
            asked(*unknown)


def test_initial_gamma_is_the_swept_one_nearest_to_the_settings() -> None:
    assert [asked(gammas=(1, 8, 12), initial=usual).initial for usual in (0, 4, 5, 8)] == [1, 1, 8, 8]
