"""Algorithm 2 of on-the-fly adaptation, worked by hand."""

from __future__ import annotations

import random

import pytest

from osd.gamma.base import Observation
from osd.gamma.rules.q_learning import QLearningController
from storage.settings.drafting import QLearningSettings
from tests.support.worlds import play_alone


class Told(random.Random):
    """Tries a written γ where one is written, and otherwise lets the table choose."""

    def __init__(self, tries: list[int | None]) -> None:
        super().__init__(0)
        self._tries = iter(tries)

    def random(self) -> float:
        self._next = next(self._tries)
        return 0.99 if self._next is None else 0.0

    def randint(self, a: int, b: int) -> int:
        assert self._next is not None and a <= self._next <= b
        return self._next


def test_a_trace_worked_by_hand() -> None:
    controller = QLearningController(
        2,
        3,
        Told([3, 1, 3, 2, None, None, None, None]),
        QLearningSettings(warmup=0, alpha=0.5, discount=0.5, epsilon=0.5),
    )
    # Q is 0 everywhere; Q(s, a): s the γ before, a the γ of the round
    # γ 2: the first, nobody's choice.                                          Tries 3
    # γ 3 after 2, 3 of 3, reward 1:   Q(2,3) = 0.5 (1 + 0.5 · 0) = 0.5.          Tries 1
    # γ 1 after 3, 0 of 1, reward 0:   Q(3,1) = 0.                                Tries 3
    # γ 3 after 1, 0 of 3, reward 0:   Q(1,3) = 0.                                Tries 2
    # γ 2 after 3, 1 of 2, reward 0.5: Q(3,2) = 0.5 (0.5 + 0.5 · Q(2,3)) = 0.375. After 2 best is 3
    # γ 3 after 2, 0 of 3, reward 0:   Q(2,3) = 0.5 + 0.5 (0 + 0.5 · 0.375 − 0.5) = 0.34375. After 3 best is 2
    # γ 2 after 3, 0 of 2, reward 0:   Q(3,2) = 0.375 + 0.5 (0.5 · 0.34375 − 0.375) = 0.2734375. After 2 best is 3
    # γ 3 after 2, 3 of 3, reward 1:   Q(2,3) = 0.34375 + 0.5 (1 + 0.5 · 0.2734375 − 0.34375) = 0.740234375. Then 2
    assert play_alone(controller, [2, 3, 0, 0, 1, 0, 0, 3]) == [2, 3, 1, 3, 2, 3, 2, 3, 2]
    assert controller._values[2][3] == pytest.approx(0.740234375)
    assert controller._values[3][2] == pytest.approx(0.2734375)
    assert sum(value != 0 for line in controller._values for value in line) == 2


def test_of_gammas_worth_the_same_the_least_is_taken() -> None:
    controller = QLearningController(3, 8, Told([None, None]), QLearningSettings(warmup=0))
    assert play_alone(controller, [0, 0]) == [3, 0, 0]


def test_a_trace_that_rests_worked_by_hand() -> None:
    controller = QLearningController(
        1,
        2,
        Told([0, 1, None, None, None, None]),
        QLearningSettings(warmup=0, alpha=0.5, discount=0.5, epsilon=0.5, rest=0.4),
    )
    # γ 1: the first, nobody's choice.                                              Tries 0
    # γ 0 after 1, reward 0.4:         Q(1,0) = 0.5 (0.4 + 0.5 · 0) = 0.2.            Tries 1
    # γ 1 after 0, 0 of 1, reward 0:   Q(0,1) = 0.5 (0 + 0.5 · Q(1,0)) = 0.05.        After 1 best is 0
    # γ 0 after 1, reward 0.4:         Q(1,0) = 0.2 + 0.5 (0.4 + 0.025 − 0.2) = 0.3125.   After 0 best is 1
    # γ 1 after 0, 1 of 1, reward 1:   Q(0,1) = 0.05 + 0.5 (1 + 0.15625 − 0.05) = 0.603125.   After 1 best is 0
    # γ 0 after 1, reward 0.4:         Q(1,0) = 0.3125 + 0.5 (0.4 + 0.3015625 − 0.3125) = 0.50703125.   Then 1
    assert play_alone(controller, [1, 0, 0, 0, 1, 0]) == [1, 0, 1, 0, 1, 0, 1]
    assert controller._values[0] == [0.0, pytest.approx(0.603125), 0.0]
    assert controller._values[1] == [pytest.approx(0.50703125), 0.0, 0.0]


@pytest.mark.parametrize(
    ("rest", "accepted", "rests"), [(0.0, 0, True), (0.0, 1, False), (0.3, 1, False), (0.9, 1, True)]
)
def test_it_rests_where_drafting_is_worth_less(rest: float, accepted: int, rests: bool) -> None:
    """Half of a draft of two is accepted, or nothing."""
    controller = QLearningController(2, 2, random.Random(0), QLearningSettings(rest=rest))
    for _ in range(60):
        row, chosen = controller.start(), []
        for _ in range(100):
            chosen.append(gamma := row.next_gamma(1))
            row.observe(Observation(gamma, gamma, accepted if gamma == 2 else 0))
    assert chosen.count(0 if rests else 2) > 80


def test_a_window_that_a_length_limit_cut_teaches_nothing() -> None:
    controller = QLearningController(2, 3, Told([3, 3]), QLearningSettings(warmup=0))
    row = controller.start()
    row.observe(Observation(2, 2, 2))
    assert row.next_gamma(1) == 3
    row.observe(Observation(gamma=1, drafted=1, accepted=1))
    assert not any(value for line in controller._values for value in line)


def test_what_one_request_teaches_the_next_one_knows() -> None:
    controller = QLearningController(2, 3, Told([3, None, None, None]), QLearningSettings(warmup=0))
    assert play_alone(controller, [2, 3])[:2] == [2, 3]
    assert play_alone(controller, [2]) == [2, 3]  # not tried: Q(2, 3) is above 0


def test_fewer_and_fewer_are_tried_during_warm_up() -> None:
    controller = QLearningController(4, 8, random.Random(0), QLearningSettings(warmup=4, epsilon=0.1))
    shares = []
    for _ in range(6):
        controller.start()
        shares.append(controller.exploring)
    assert shares == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.1, 0.1])
    assert QLearningController(4, 8, random.Random(0), QLearningSettings(warmup=0)).exploring == 0.05


def test_the_same_seed_and_rounds_give_the_same_gammas() -> None:
    def choices(seed: int) -> list[int]:
        return play_alone(
            QLearningController(4, 8, random.Random(seed), QLearningSettings()), [3, 1, 4, 1, 5, 2, 6, 5, 3, 5] * 3
        )

    assert choices(7) == choices(7) != choices(8)


def test_it_finds_the_gamma_with_the_highest_share_of_accepted_tokens() -> None:
    """Which is what its reward says, however few tokens that brings (section 6.3): here all up to 2 are accepted."""
    controller = QLearningController(4, 6, random.Random(0), QLearningSettings())
    for _ in range(60):
        last = play_alone(controller, [2] * 40)
    assert sum(gamma <= 2 for gamma in last[10:]) >= 25
