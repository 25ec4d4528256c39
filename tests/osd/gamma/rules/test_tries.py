"""Tries of the rule analytic come when they are due, and cost less than 1 % of decoding."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osd.gamma.base import CostModel, Observation
from osd.gamma.costs.pass_times import TRUSTED
from osd.gamma.rules.analytic import BANKED, BURST, AnalyticController, AnalyticRow
from tests.support.worlds import known_costs, play


def level(batch: int, tokens: int) -> float:
    return 4.0


def hopeless(costs: CostModel, maximum: int = 12) -> tuple[AnalyticController, AnalyticRow]:
    """A controller that knows drafts to be refused, and a new request."""
    controller = AnalyticController(costs, initial=4, maximum=maximum)
    seen = controller.start()
    for _ in range(64):
        seen.observe(Observation(4, 4, 0))
    return controller, controller.start()


def probes(played: list[tuple[int, int]]) -> list[int]:
    """Which rounds drafted, counted from 1."""
    return [index for index, (gamma, _) in enumerate(played, start=1) if gamma]


def test_at_gamma_0_a_probe_comes_as_often_as_its_cost_allows() -> None:
    # a = 1, b = 4: a round of a probe loses 1 + 4 − 4 = 1 ms, the two of it 2 ms, so one in every 200 ms of
    # decoding, which is 50 plain rounds.
    costs = known_costs(1.0, level)
    played = play(*hopeless(costs), costs, 140, 0.0, 1.0, level)
    assert probes(played) == pytest.approx([51, 52, 102, 103], abs=1)
    assert {gamma for gamma, _ in played} == {0, 1}


def test_a_dearer_probe_is_rarer() -> None:
    # a = 3, b(1, 2) = 5: two rounds lose 2 (3 + 5 − 4) = 8 ms, one probe in every 800 ms, which is 200 plain rounds
    def verify(batch: int, tokens: int) -> float:
        return 3.0 + tokens

    costs = known_costs(3.0, verify)
    played = play(*hopeless(costs), costs, 250, 0.0, 3.0, verify)
    assert probes(played) == pytest.approx([201, 202], abs=2)


def test_a_probe_pays_for_what_the_drafter_must_read_first() -> None:
    # as the first, and reading up takes 3 ms: a probe loses 3 + 2 = 5 ms, so 500 ms, 125 plain rounds
    assert read_first(258) == pytest.approx([126, 127, 252, 253], abs=2)


def read_first(rounds: int) -> list[int]:
    """The rounds that try where the drafter reads ten tokens before each, for 3 ms."""
    costs = known_costs(1.0, level)
    for _ in range(3):
        costs.unread = 10
        costs.observe_draft(1, 1, 4.0)
    controller, row = hopeless(costs)
    behind, found = True, []
    for index in range(1, rounds + 1):
        if controller.plan([row], [99], 1, [10 * behind])[0]:
            found.append(index)
            costs.unread = 10 * behind
            costs.observe_draft(1, 1, 1.0 + 3.0 * behind)
        behind = not (found and found[-1] == index)
        costs.observe_verify(1, 1 + (not behind), 4.0)
        row.observe(Observation(int(not behind), int(not behind), 0))
    return found


def test_one_row_tries_for_a_batch_the_one_with_the_least_to_read() -> None:
    costs = known_costs(1.0, level, batches=(4,))
    controller, _ = hopeless(costs)
    rows = [controller.start() for _ in range(4)]
    asked = [controller.plan(rows, [99, 0, 99, 99], 4, [9, 0, 7, 9]) for _ in range(80)]
    tries = [gammas for gammas in asked if any(gammas)]
    assert len(tries) == BURST and tries == [[0, 0, 1, 0]] * BURST


@settings(max_examples=40)
@given(st.floats(0.3, 8), st.floats(0.5, 8), st.floats(0, 2), st.integers(50, 400))
def test_probes_stay_below_one_percent_of_decoding(step: float, start: float, slope: float, rounds: int) -> None:
    def verify(batch: int, tokens: int) -> float:
        return start + slope * tokens

    costs = known_costs(step, verify)
    played = play(*hopeless(costs), costs, rounds, 0.0, step, verify)
    lost = sum(step * gamma + verify(1, gamma + 1) - verify(1, 1) for gamma, _ in played)
    spent = sum(step * gamma + verify(1, gamma + 1) for gamma, _ in played)
    assert lost <= 0.0101 * spent


def test_saved_credit_is_limited() -> None:
    costs = known_costs(1.0, level)
    controller = AnalyticController(costs, initial=4, maximum=12)
    good = controller.start()
    play(controller, good, costs, 4000, 1.0, 1.0, level)  # a long time of speculating, without a try
    for _ in range(64):
        good.observe(Observation(4, 4, 0))
    played = play(controller, good, costs, 20, 0.0, 1.0, level)
    assert probes(played) == list(range(1, int(BANKED) * BURST + 1))


def test_a_draft_that_has_become_good_is_noticed() -> None:
    costs = known_costs(1.0, level)
    controller, row = hopeless(costs)
    assert sum(gamma for gamma, _ in play(controller, row, costs, 100, 0.0, 1.0, level)) == 2
    played = play(controller, row, costs, 400, 0.9, 1.0, level)
    assert all(gamma >= 3 for gamma, _ in played[100:])  # by Eq. 1 it is 6 at 0.9 and 3 at 0.75


def test_plain_decoding_is_timed_at_once() -> None:
    costs = CostModel()
    for _ in range(TRUSTED):
        costs.observe_draft(1, 4, 4.0)
        costs.observe_verify(1, 5, 6.0)
    controller = AnalyticController(costs, initial=4, maximum=12)
    row = controller.start()
    for _ in range(4):
        row.observe(Observation(4, 4, 4))
    assert controller.plan([row], [99], 1) == [0]  # never timed: the choice itself hangs on it
    costs.observe_verify(1, 1, 4.0)
    assert controller.plan([row], [99], 1)[0] > 0


def test_starting_at_gamma_0_still_finds_out_that_drafting_pays() -> None:
    costs = CostModel()
    controller = AnalyticController(costs, initial=0, maximum=8)
    played = play(controller, controller.start(), costs, 2000, 0.9, 0.5, level)
    assert played[0] == (0, 0)
    assert played[-1][0] >= 4
    first = next(index for index, (gamma, _) in enumerate(played) if gamma)
    # never timed, a draft step is taken to cost what a plain round does: two of them are due after 200, and what
    # verifying another token takes is a guess that doubles that at most
    assert 200 <= first <= 400
