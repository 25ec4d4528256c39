"""Eqs. 1 and 2 of on-the-fly adaptation: traces by hand, brute force, and what must always hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osd.gamma.base import CostModel, Observation
from osd.gamma.rules.analytic import AnalyticController, best_gamma
from tests.support.worlds import known_costs, play, play_alone

accuracies = st.floats(0, 0.98)
round_costs = st.lists(st.floats(0.1, 100), min_size=2, max_size=13).map(sorted)


def level(batch: int, tokens: int) -> float:
    """b = 4 ms whatever is verified."""
    return 4.0


def controller(costs: CostModel, **changes: object) -> AnalyticController:
    return AnalyticController(costs, **{"initial": 4, "maximum": 5, "history": 2, "prior_trials": 0.0, **changes})  # type: ignore[arg-type]


def eq_1(beta: float, gamma: int, cost: float) -> float:
    return (1 - beta ** (gamma + 1)) / ((1 - beta) * cost)


def test_a_trace_worked_by_hand() -> None:
    alone = controller(known_costs(1.0, level))  # a = 1, b = 4, h = 2, γ_max = 5, no prior
    # rounds 1 and 2: fewer than 8 tokens judged so far, so γ_initial = 4; both accepted whole
    # round 3: V = 4 + 4, no rejection, Acc 8/8 but at most 0.98. Tokens per ms:
    #          γ 4: 4.8039/8 = 0.600, γ 5: 5.7079/9 = 0.634                                        -> 5
    # then V 1 of 5. Last two rounds: (4 + 1) / (5 + 1) = 0.8333
    #          γ 3: 3.1065/7 = 0.4438, γ 4: 3.5887/8 = 0.4486, γ 5: 3.9906/9 = 0.4434              -> 4
    # then V 0 of 4: (1 + 0) / (1 + 2) = 0.3333
    #          γ 0: 1/4 = 0.25, γ 1: 1.3333/5 = 0.2667, γ 2: 1.4444/6 = 0.2407                     -> 1
    # then V 0 of 1: 0 / 2 = 0:   γ 0: 0.25, γ 1: 0.2                                              -> 0
    # a round without a draft teaches nothing                                                      -> 0
    assert play_alone(alone, [4, 4, 1, 0, 0, 0]) == [4, 4, 5, 4, 1, 0, 0]


def test_a_verification_that_grows_shortens_the_draft() -> None:
    def dear(batch: int, tokens: int) -> float:
        return 4.0 + 2.0 * (tokens - 1)

    alone = controller(known_costs(1.0, dear))
    # Acc 0.98: γ 0: 1/4 = 0.25, γ 1: 1.98/7 = 0.2829, γ 2: 2.9404/10 = 0.2940, γ 5: 5.7079/19 = 0.3004 -> 5
    # (4 + 1)/6 = 0.8333: γ 1: 1.8333/7 = 0.2619, γ 2: 2.5278/10 = 0.2528                               -> 1
    assert play_alone(alone, [4, 4, 1])[2:] == [5, 1]


def test_the_cap_is_what_stops_an_estimate_of_one() -> None:
    # a = 1, b = 40: at 0.98 the gain per step is still above its cost at γ = 12, at 0.5 it is not after γ = 4:
    # γ 4: 1.9375/44 = 0.04403, γ 5: 1.96875/45 = 0.04375, γ 3: 1.875/43 = 0.04360
    costs = known_costs(1.0, lambda batch, tokens: 40.0)
    assert play_alone(controller(costs, maximum=12), [4, 4])[-1] == 12
    assert play_alone(controller(costs, maximum=12, acceptance_max=0.5), [4, 4])[-1] == 4


def test_eq_11_reads_the_same_rounds_as_better() -> None:
    costs = known_costs(1.0, level)
    by_ratio, by_root = controller(costs).start(), controller(costs, estimator="truncated").start()
    for row in (by_ratio, by_root):
        row.observe(Observation(3, 3, 1))
        row.observe(Observation(3, 3, 0))
    assert by_ratio.acceptance == pytest.approx(1 / 3)
    # Σ y = 3 over two rounds of γ = 3: Eq. 12 at ȳ = 1.5, (1 + 2β + 3β² + 4β³) / (1 + β + β² + β³) = 1.5
    beta = by_root.acceptance
    assert (1 + 2 * beta + 3 * beta**2 + 4 * beta**3) / (1 + beta + beta**2 + beta**3) == pytest.approx(1.5, abs=1e-3)
    assert beta > 1 / 3


def test_a_new_request_starts_from_what_the_engine_has_seen() -> None:
    shared = controller(known_costs(1.0, level), history=12, prior_trials=6.0)
    first = shared.start()
    for accepted in (4, 4, 0):
        first.observe(Observation(4, 4, accepted))
    first.observe(Observation(1, 1, 0))
    # 8 accepted, 2 rejected; with one of each beside them (8 + 1) / (10 + 2)
    second = shared.start()
    assert second.acceptance == pytest.approx(0.75)
    second.observe(Observation(4, 4, 0))
    # own 0 of 1, and 6 trials of the engine's (8 + 1) / (11 + 2): 6 · 0.6923 / 7
    assert second.acceptance == pytest.approx(6 * (9 / 13) / 7)


def test_at_first_a_few_rows_try_those_with_the_least_to_read() -> None:
    shared = controller(known_costs(1.0, level, batches=(6,)), initial=4)
    rows = [shared.start() for _ in range(6)]
    assert shared.plan(rows, [0, 9, 9, 9, 9, 9], 6, [0, 8, 5, 5, 8, 8]) == [0, 1, 1, 1, 1, 0]
    assert shared.plan(rows[:2], [9, 9], 2) == [4, 0]


def test_a_clear_loss_ends_the_first_tries() -> None:
    assert play_alone(controller(known_costs(4.0, level), initial=4), [0, 0, 0]) == [4, 4, 1, 1]


def test_a_request_without_history_goes_by_what_the_engine_has_learned_since() -> None:
    shared = controller(known_costs(1.0, level), prior_trials=6.0)
    early, other = shared.start(), shared.start()
    for _ in range(9):
        other.observe(Observation(4, 4, 0))
    assert early.acceptance == shared.start().acceptance == pytest.approx(1 / 11)


def test_gamma_initial_until_costs_are_known() -> None:
    costs = CostModel()
    assert play_alone(controller(costs, initial=3), [3, 3, 3, 3]) == [3] * 5  # nothing was timed
    assert play_alone(controller(costs, initial=0), []) == [0]


def test_never_speculates_where_drafting_costs_more_than_it_can_win() -> None:
    # a = b: a drafted token costs as much as the target's own, so even Acc 1 wins nothing
    assert play_alone(controller(known_costs(4.0, level), initial=4), [4, 4])[-1] == 0


def test_plain_decoding_that_was_never_timed_is_estimated() -> None:
    # Timed at γ 4 and 5 only: b(1, t) = 2 + 2t. By the line b(1, 1) = 4, so 1 token in 4 ms.
    costs = CostModel()
    for _ in range(4):
        for gamma in (4, 5):
            costs.observe_draft(1, gamma, gamma * 0.5)
            costs.observe_verify(1, gamma + 1, 2.0 + 2.0 * (gamma + 1))
    assert costs.rounds_ms(1, 5)[0] == pytest.approx(4.0, rel=0.15)  # type: ignore[index]
    alone = controller(costs)
    row = alone.start()
    for _ in range(8):
        row.observe(Observation(1, 1, 0))  # Acc 0
    assert alone.plan([row], [99], 1) == [0]


def test_a_batch_shares_one_gamma_that_is_best_for_all_of_it() -> None:
    # two rows, a = 1, b = 4: at 0.98 alone 5, at 0 alone 0. Together, tokens per ms of γ:
    # 0: 2/4 = 0.5, 1: 2.98/5 = 0.596, 2: 3.9404/6 = 0.6567, 5: 6.7079/9 = 0.7453
    shared = controller(known_costs(1.0, level, batches=(2,)), history=2)
    good, bad = shared.start(), shared.start()
    for _ in range(2):
        assert shared.plan([good, bad], [99, 99], 2) == [4, 0]  # at first one tries; as if both had:
        good.observe(Observation(4, 4, 4))
        bad.observe(Observation(4, 4, 0))
    assert (good.acceptance, bad.acceptance) == (0.98, 0.0)
    assert shared.plan([good, bad], [99, 99], 2) == [5, 5]
    assert shared.plan([bad], [99], 2) == [0]  # only the rows that are here now count


def test_a_batch_that_grows_dear_drafts_less() -> None:
    shared = controller(known_costs(1.0, lambda b, t: 4.0 if b == 1 else 4.0 * t, batches=(1, 8)), initial=4)
    rows = [shared.start() for _ in range(8)]
    for row in rows:
        row.observe(Observation(4, 4, 3))
    assert shared.plan(rows[:1], [99], 1) > [0]
    assert shared.plan(rows, [99] * 8, 8) == [0] * 8  # b(8, t) = 4 t: a token verified costs as one decoded


@given(accuracies, round_costs)
def test_the_choice_is_the_maximum_of_eq_1(beta: float, costs: list[float]) -> None:
    rates = [eq_1(beta, g, cost) for g, cost in enumerate(costs)]
    assert rates[best_gamma([beta], costs)] == pytest.approx(max(rates))


@given(st.lists(accuracies, min_size=1, max_size=8), round_costs)
def test_the_choice_for_a_batch_is_the_maximum_of_the_sum(betas: list[float], costs: list[float]) -> None:
    rates = [sum(eq_1(beta, g, cost) for beta in betas) for g, cost in enumerate(costs)]
    assert rates[best_gamma(betas, costs)] == pytest.approx(max(rates))


@given(accuracies, accuracies, round_costs)
def test_better_acceptance_never_shortens_the_draft(one: float, other: float, costs: list[float]) -> None:
    worse, better = sorted((one, other))
    assert best_gamma([worse], costs) <= best_gamma([better], costs)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(0, 1), st.floats(0.01, 50), st.floats(0.01, 50)), max_size=60),
    st.integers(0, 6),
    st.integers(6, 12),
    st.sampled_from(["ratio", "truncated"]),
)
def test_gamma_stays_between_0_and_the_maximum(
    rounds: list[tuple[int, float, float, float]], initial: int, maximum: int, estimator: str
) -> None:
    costs = CostModel()
    shared = controller(costs, initial=initial, maximum=maximum, estimator=estimator, prior_trials=6.0)
    rows = [shared.start() for _ in range(4)]
    for batch, share, draft_ms, verify_ms in rounds:
        asked = shared.plan(rows[:batch], [99] * batch, batch)
        assert all(0 <= gamma <= maximum for gamma in asked)
        for row, gamma in zip(rows, asked, strict=False):
            row.observe(Observation(gamma, gamma, round(share * gamma)))
            assert 0 <= row.acceptance <= 0.98
        costs.observe_draft(batch, max(asked), draft_ms)
        costs.observe_verify(batch, batch * (max(asked) + 1), verify_ms)


def test_it_finds_the_best_gamma_of_a_world_it_knew_nothing_of() -> None:
    # a = 0.5, b(t) = 4 + 0.1 t, each token accepted with 0.8: by Eq. 1 the best γ is 5 (0.520 tokens per ms).
    # Its neighbours 4 to 6 are within 2 %; the mean γ of the last 200 of 400 rounds must be among them.
    def verify(batch: int, tokens: int) -> float:
        return 4.0 + 0.1 * tokens

    costs = CostModel()
    alone = controller(costs, initial=1, maximum=12, history=12, prior_trials=6.0)
    played = play(alone, alone.start(), costs, 400, 0.8, 0.5, verify)
    assert best_gamma([0.8], [0.5 * g + verify(1, g + 1) for g in range(13)]) == 5
    assert 4 <= sum(gamma for gamma, _ in played[200:]) / 200 <= 6
