"""SGLang's moving average with hysteresis, worked by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from osd.gamma.base import Observation
from osd.gamma.rules.moving_average import MovingAverageController, Slot
from tests.support.worlds import play_alone


def gammas(slot: Slot, rounds: list[list[int]]) -> list[int]:
    """γ after each round."""
    seen = []
    for accepted in rounds:
        slot.update(accepted)
        seen.append(slot.gamma)
    return seen


def test_a_trace_worked_by_hand() -> None:
    slot = Slot(3, [1, 3, 5, 7], -0.25, alpha=0.5, interval=2, warmup=1)
    # m begins at 3 − 1 = 2. Rounds 3, 5, 7, … decide. Down from 3 at m ≤ 0.25, from 5 at ≤ 2.25, from 7 at ≤ 4.25;
    # up from 1 at m > 0.5, from 3 at > 2.5, from 5 at > 4.5
    # 3: 2.5    3: 2.75   3: 2.875, more than 2.5: up to 5                                          -> 3 3 5
    # 2: 2.4375           3: 2.71875, neither ≤ 2.25 nor > 4.5: 5                                   -> 5 5
    # 1: 1.859375         2: 1.9296875 ≤ 2.25: down to 3, not ≤ 0.25                                -> 5 3
    # 0: 0.96484375       0: 0.482421875: between 0.25 and 2.5, the average may sink a while        -> 3 3
    # 0: 0.2412109375     0: 0.12060546875 ≤ 0.25: down to 1                                        -> 3 1
    # 1: 0.560302734375   1: 0.7801513671875 > 0.5: up to 3, not > 2.5                              -> 1 3
    # two rows, 7 and 5, mean 6: 3.39007568359375     again: 4.695037841796875 > 2.5, > 4.5: up two, to 7
    accepted = [[3], [3], [3], [2], [3], [1], [2], [0], [0], [0], [0], [1], [1], [7, 5], [7, 5]]
    assert gammas(slot, accepted) == [3, 3, 5, 5, 5, 5, 3, 3, 3, 3, 1, 1, 3, 3, 7]
    assert slot.average == 4.695037841796875


def test_down_to_0_and_back_worked_by_hand() -> None:
    slot = Slot(1, [0, 1, 3], 0.0, alpha=0.5, interval=2, warmup=0)
    # m = 0. Rounds 2, 4, 6, … decide. 1: 0.5, 0: 0.25 ≤ 0.5, down to 0. Two rounds without a draft, m stands: try 1.
    # 1: 0.625, 1: 0.8125 > 0.5: up to 3. 0: 0.40625, 0: 0.203125 ≤ 0.5: down to 1, and ≤ 0.5: down to 0
    accepted = [[1], [0], [], [], [1], [1], [0], [0]]
    assert gammas(slot, accepted) == [1, 0, 0, 1, 1, 3, 3, 0]


def test_a_slot_begun_at_0_tries_the_first_candidate_as_if_it_went_well() -> None:
    slot = Slot(0, [0, 1, 3], 0.0, interval=1, warmup=0)
    assert slot.average == -1
    slot.update([])
    assert (slot.gamma, slot.average) == (1, 0.0)


def test_the_defaults_decide_first_after_15_rounds_and_then_every_5() -> None:
    # all accepted from γ 3: m = 2, 2.2, 2.36, … is above 2.5 long before the 15th round, and below 4.5 as ever
    assert play_alone(MovingAverageController(3, 12), [3] * 15) == [3] * 15 + [5]
    # then m → 5: after five rounds of 5 it is 5 − (5 − m_15) 0.8⁵ with m_15 = 3 − 0.8¹⁵ = 2.965, so 4.333: not yet;
    # after ten 4.78 > 4.5
    assert play_alone(MovingAverageController(3, 12), [3] * 15 + [5] * 10)[-6:] == [5] * 5 + [7]


def test_an_initial_gamma_that_is_no_candidate_becomes_the_middle_one() -> None:
    assert play_alone(MovingAverageController(4, 12), []) == [5]
    assert play_alone(MovingAverageController(4, 4), []) == [3]  # of 1 and 3


def test_a_batch_has_one_gamma_and_one_average() -> None:
    controller = MovingAverageController(3, 12)
    rows = [controller.start() for _ in range(4)]
    for _ in range(15):
        assert controller.plan(rows, [9] * 4, 4) == [3] * 4
        for row, accepted in zip(rows, (3, 3, 0, 0), strict=True):
            row.observe(Observation(3, 3, accepted))  # mean 1.5, from m = 2 towards it
    assert controller.plan(rows, [9] * 4, 4) == [3] * 4  # each pair alone would have gone to 5 and to 1


def test_each_range_of_batch_sizes_keeps_its_own() -> None:
    controller = MovingAverageController(3, 12)
    row = controller.start()
    for _ in range(15):
        assert controller.plan([row], [9], 1) == [3]
        row.observe(Observation(3, 3, 3))
    assert controller.plan([row], [9], 8) == [3]  # counts the 15th round where it was decoded
    assert controller.plan([row], [9], 7) == [5]
    assert controller.plan([row], [9], 32) == [1]  # of 0 and 1
    assert controller.plan([row], [9], 100) == [0]


def test_a_row_without_room_has_no_say() -> None:
    controller = MovingAverageController(3, 12)
    row, full = controller.start(), controller.start()
    for _ in range(15):
        controller.plan([row, full], [9, 0], 2)
        row.observe(Observation(3, 3, 3))
        full.observe(Observation(0, 0, 0))
    assert controller.plan([row, full], [9, 0], 2) == [5, 5]


@given(
    st.integers(0, 12),
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(1, 70), st.integers(0, 12)), max_size=60),
)
def test_gamma_stays_between_0_and_the_maximum(initial: int, maximum: int, rounds: list[tuple[int, int]]) -> None:
    controller = MovingAverageController(initial, maximum)
    row = controller.start()
    for batch, accepted in rounds:
        [gamma] = controller.plan([row], [99], batch)
        assert 0 <= gamma <= maximum
        row.observe(Observation(gamma, gamma, min(accepted, gamma)))
