"""Probes come when they are due, and cost less than 1 % of decoding."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osd.gamma.base import CostModel, Observation
from osd.gamma.costs.model import TRUSTED
from osd.gamma.costs.probing import BANKED, BURST, STALE_ROUNDS, Prober
from osd.gamma.rules.analytic import AnalyticController, AnalyticRow
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
    # decoding. 50 plain rounds spend 200 ms: rounds 51 and 52. They take 10 ms, and 48 plain rounds more make
    # 402 (47 make 398): rounds 101 and 102.
    costs = known_costs(1.0, level)
    played = play(*hopeless(costs), costs, 140, 0.0, 1.0, level)
    assert probes(played) == [51, 52, 101, 102]
    assert {gamma for gamma, _ in played} == {0, 1}


class NeverRests(AnalyticController):
    """Decides every round."""

    def _rest(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("beta", "step"), [(0.0, 1.0), (0.3, 1.0), (0.6, 2.5)])
def test_resting_answers_what_deciding_every_round_would(beta: float, step: float) -> None:
    def of(kind: type[AnalyticController]) -> list[tuple[int, int]]:
        costs = known_costs(step, level)
        controller = kind(costs, initial=4, maximum=12)
        return play(controller, controller.start(), costs, 2000, beta, step, level)

    played = of(AnalyticController)
    assert played == of(NeverRests)
    assert [gamma for gamma, _ in played].count(0) > 100


def test_a_dearer_probe_is_rarer() -> None:
    # a = 3, b(1, 2) = 5: two rounds lose 2 (3 + 5 − 4) = 8 ms, one probe in every 800 ms, which is 200 plain rounds
    def verify(batch: int, tokens: int) -> float:
        return 3.0 + tokens

    costs = known_costs(3.0, verify)
    played = play(*hopeless(costs), costs, 250, 0.0, 3.0, verify)
    assert probes(played) == [201, 202]


def test_a_probe_pays_for_what_the_drafter_must_read_first() -> None:
    # as the first, and reading up takes 3 ms: a probe loses 3 + 2 = 5 ms, so 500 ms, 125 plain rounds
    assert read_first([3.0] * 2, 250) == [126, 127, 250]


def test_what_a_probe_took_beyond_its_reckoning_is_paid_afterwards() -> None:
    # the first reads for 6 ms instead of 3, so the second comes when 500 + 300 + 500 ms are decoded, of which the
    # first probe was 6 + 2 · (1 + 4) = 16: 196 plain rounds. It reads for 1 ms, so that the third is due at 1,600 ms
    # instead of 1,800: 73 plain rounds.
    assert read_first([6.0, 1.0, 3.0], 410) == [126, 127, 324, 325, 399, 400]


def read_first(reading: list[float], rounds: int) -> list[int]:
    """The rounds that probe where the drafter reads for so many milliseconds before each, 3 being usual."""
    costs = known_costs(1.0, level)
    for _ in range(3):
        costs.unread = 10
        costs.observe_draft(1, 1, 4.0)
    costs.spent_ms, costs.unread = 0.0, 0
    controller, row = hopeless(costs)
    to_come, behind, found = list(reading), True, []
    for index in range(1, rounds + 1):
        if controller.plan([row], [99], 1)[0]:
            found.append(index)
            costs.unread = 10 if behind else 0
            costs.observe_draft(1, 1, 1.0 + (to_come.pop(0) if behind else 0.0))
        behind = not (found and found[-1] == index)
        costs.observe_verify(1, 1 + (not behind), 4.0)
        row.observe(Observation(int(not behind), int(not behind), 0))
    return found


def test_one_row_probes_for_a_batch_the_one_with_the_least_to_read() -> None:
    # b(4, 5) = b(4, 4) = 4: two rounds lose 2 a = 2 ms, so 200 ms earn one
    costs = known_costs(1.0, level, batches=(4,))
    controller, _ = hopeless(costs)
    rows = [controller.start() for _ in range(4)]
    costs.spent_ms = 199.0
    asked, unread = [], [9, 0, 7, 9]
    for _ in range(4):
        asked.append(controller.plan(rows, [99, 0, 99, 99], 4, unread))
        costs.observe_draft(4, max(asked[-1]), 1.0)
        costs.observe_verify(4, 4 + sum(asked[-1]), 4.0)
        unread = [9, 0, 0, 9] if any(asked[-1]) else unread
    assert asked == [[0] * 4, [0, 0, 1, 0], [0, 0, 1, 0], [0] * 4]


@settings(max_examples=40)
@given(st.floats(0.3, 8), st.floats(0.5, 8), st.floats(0, 2), st.integers(50, 400))
def test_probes_stay_below_one_percent_of_decoding(step: float, start: float, slope: float, rounds: int) -> None:
    def verify(batch: int, tokens: int) -> float:
        return start + slope * tokens

    costs = known_costs(step, verify)
    played = play(*hopeless(costs), costs, rounds, 0.0, step, verify)
    lost = sum(step * gamma + verify(1, gamma + 1) - verify(1, 1) for gamma, _ in played)
    assert lost <= 0.0101 * costs.spent_ms


def test_an_engine_s_first_time_earns_twice() -> None:
    # 2 ms a probe: 100 ms that count double, 25 plain rounds. The next is due at 300 ms, of which 100 count double and
    # 10 were the first probe's: 48 plain rounds more
    costs, asked, short = known_costs(1.0, level), [], []
    prober = Prober(costs, first_ms=100.0)
    for number in range(1, 100):
        prober.settle()
        gamma = prober.instead(0, 1.0, 1, (4.0, 5.0))
        if gamma:
            asked.append(number)
        short.append(prober.short_ms)
        costs.observe_draft(1, gamma, 1.0)
        costs.observe_verify(1, 1 + gamma, 4.0)
    assert asked == [26, 27, 76, 77]
    assert short[0] == pytest.approx(100.0) and short[30] == pytest.approx(300.0 - 110.0 - 12.0)


@pytest.mark.parametrize("others", [0, 1, 5])
def test_rounds_that_another_rule_sizes_earn_nothing(others: int) -> None:
    # the first test's probes, with others' rounds behind each of ours
    costs, asked = known_costs(1.0, level), []
    prober = Prober(costs)
    for number in range(1, 141):
        prober.settle()
        if gamma := prober.instead(0, 1.0, 1, (4.0, 5.0)):
            asked.append(number)
            costs.observe_draft(1, gamma, 1.0)
        costs.observe_verify(1, 1 + gamma, 4.0)
        for _ in range(others):
            costs.observe_verify(1, 1, 4.0)
    assert asked == pytest.approx([51, 52, 101, 102], abs=1)


def test_free_probes_cost_no_credit() -> None:
    """Two come at once where they may; a third waits, as long as it would have without them."""
    table = (4.0, 5.0)  # a round of a probe loses 1 ms

    def rounds_until_a_probe(free: int, may: bool) -> list[int]:
        costs = CostModel()
        prober, chosen = Prober(costs, free=free), []
        for number in range(120):
            prober.settle()
            if prober.instead(0, 1.0, 1, table, free=may):
                chosen.append(number)
            costs.observe_verify(1, 1, table[bool(chosen and chosen[-1] == number)])
        return chosen

    waits = rounds_until_a_probe(0, True)
    assert waits[0] > 40
    assert rounds_until_a_probe(2, False) == waits
    assert rounds_until_a_probe(2, True)[: 2 * BURST] == list(range(2 * BURST))
    assert abs(rounds_until_a_probe(2, True)[2 * BURST] - waits[0]) <= 1


def test_saved_credit_is_limited() -> None:
    costs = known_costs(1.0, level)
    costs.spent_ms = 1e6  # a long time of speculating, without a probe
    played = play(*hopeless(costs), costs, 20, 0.0, 1.0, level)
    assert probes(played) == list(range(1, int(BANKED) * BURST + 1))


def test_a_draft_that_has_become_good_is_noticed() -> None:
    costs = known_costs(1.0, level)
    controller, row = hopeless(costs)
    assert sum(gamma for gamma, _ in play(controller, row, costs, 100, 0.0, 1.0, level)) == 2
    played = play(controller, row, costs, 400, 0.9, 1.0, level)
    assert all(gamma >= 3 for gamma, _ in played[100:])  # by Eq. 1 it is 6 at 0.9 and 3 at 0.75


def test_plain_decoding_is_timed_at_once_and_then_for_its_price() -> None:
    costs = CostModel()
    for _ in range(TRUSTED):
        costs.observe_draft(1, 4, 4.0)
        costs.observe_verify(1, 5, 6.0)
    table = [ms for gamma in range(13) if (ms := costs.round_ms(1, gamma)) is not None]
    prober = Prober(costs)
    assert prober.instead(4, 1.5, 1, table) == 0  # never timed: the choice itself hangs on it
    costs.observe_verify(1, 1, 4.0)
    # loses (1.5 − 1) · 6 = 3 ms, and 0.44 were earned in 44
    assert prober.instead(4, 1.5, 1, table) == 4
    costs.spent_ms = 300.0
    assert prober.instead(4, 1.5, 1, table) == 0
    assert prober.instead(4, 1.5, 1, table) == 4  # paid


def test_plain_decoding_is_timed_again_when_that_is_long_ago() -> None:
    costs = known_costs(1.0, level)
    prober = Prober(costs)
    table = [4.0 + gamma for gamma in range(13)]
    costs.spent_ms = 1e6
    assert prober.instead(4, 2.0, 1, table) == 4
    costs.rounds += STALE_ROUNDS
    assert prober.instead(4, 2.0, 1, table) == 0
    costs.observe_verify(1, 1, 4.0)
    assert prober.instead(4, 2.0, 1, table) == 4


def test_starting_at_gamma_0_still_finds_out_that_drafting_pays() -> None:
    costs = CostModel()
    controller = AnalyticController(costs, initial=0, maximum=8)
    played = play(controller, controller.start(), costs, 2000, 0.9, 0.5, level)
    assert played[0] == (0, 0)
    assert played[-1][0] >= 4
    first = next(index for index, (gamma, _) in enumerate(played) if gamma)
    # never timed, a draft step is taken to cost what a plain round does: two of them are due after 200
    assert first == 200


@pytest.mark.parametrize("gamma", [0, 3])
def test_a_probe_that_loses_nothing_needs_no_credit(gamma: int) -> None:
    costs = known_costs(1.0, level)
    costs.rounds += STALE_ROUNDS
    assert Prober(costs).instead(gamma, 1.0, 1, [4.0, 4.0, 4.0, 4.0]) == (1 if gamma == 0 else 0)
