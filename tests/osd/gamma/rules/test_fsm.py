"""Methods 2 and 3 of on-the-fly adaptation, worked by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from osd.gamma.base import Observation
from osd.gamma.rules.fsm import CacheFsmController, FsmController
from tests.support.worlds import play_alone


def test_a_trace_worked_by_hand() -> None:
    # γ 2, 2 accepted: all, 3; 3 of 3: all, 4; 4 of 4: all, still γ_max 4; 3 of 4: one refused, 3; 0 of 3: 2; 0 of 2: 1;
    # 0 of 1: 0; a round without a draft refuses nothing: 1; 0 of 1: 0; 1; 1 of 1: 2
    assert play_alone(FsmController(2, 4), [2, 3, 4, 3, 0, 0, 0, 0, 0, 0, 1]) == [2, 3, 4, 4, 3, 2, 1, 0, 1, 0, 1, 2]


def test_a_window_cut_short_and_accepted_whole_counts_as_accepted() -> None:
    row = FsmController(3, 8).start()
    row.observe(Observation(gamma=1, drafted=1, accepted=1))
    assert row.next_gamma(1) == 4


def test_each_request_has_its_own_counter() -> None:
    controller = FsmController(3, 8)
    first, second = controller.start(), controller.start()
    first.observe(Observation(3, 3, 0))
    assert controller.plan([first, second], [9, 9], 2) == [2, 3]


def cached(initial: int, maximum: int, prompt: list[int], rounds: list[tuple[list[int], int]]) -> list[int]:
    """Rounds: accepted tokens and the target's own. γ before each and after the last; every round drafts γ tokens."""
    row = CacheFsmController(initial, maximum).start()
    text = list(prompt)
    asked = [row.next_gamma(1)]
    for accepted, follows in rounds:
        text += [*accepted, follows]
        row.observe(Observation(asked[-1], asked[-1], len(accepted), text))
        asked.append(row.next_gamma(1))
    return asked


def test_a_trace_of_the_cache_worked_by_hand() -> None:
    # cache {1 2 3}, γ 2: 1 9 accepted, 1 is cached +1, all accepted +1: 4. The cache gains 9 and the target's 8
    # γ 4: 7 8 of 4, 8 is cached +1, not all: 5. Gains 7 and 20
    # γ 5: 30 31, none cached −1: 4. Gains 30 31 32
    # γ 4: none accepted, so none cached −1: 3. (That the target's own 30 is cached has no say.)
    # γ 3: 40 41 42, none cached −1, all accepted +1: 3
    # γ 3: 40 41 42 again, +2: 5, at most γ_max 5
    # γ 5: all five cached, +2: 5
    rounds = [([1, 9], 8), ([7, 8], 20), ([30, 31], 32), ([], 30), ([40, 41, 42], 43), ([40, 41, 42], 1), ([1] * 5, 2)]
    assert cached(2, 5, [1, 2, 3], rounds) == [2, 4, 5, 4, 3, 3, 5, 5]


def test_from_0_the_cache_is_left_by_a_token_that_the_text_has_had() -> None:
    # γ 1, refused: 0. No draft: 50 is new: 0. The target's own is 50 again: 1
    assert cached(1, 4, [1, 2], [([], 9), ([], 50), ([], 50), ([], 51)]) == [1, 0, 0, 1, 0]


def test_a_token_is_not_cached_by_its_own_round() -> None:
    assert cached(2, 8, [1], [([5, 5], 5)]) == [2, 2]  # none cached −1, all accepted +1


@given(
    st.integers(0, 6),
    st.integers(1, 6),
    st.lists(st.tuples(st.lists(st.integers(0, 30), max_size=6), st.integers(0, 30)), max_size=30),
)
def test_gamma_stays_between_0_and_the_maximum(initial: int, maximum: int, rounds: list[tuple[list[int], int]]) -> None:
    for controller in (
        FsmController(min(initial, maximum), maximum),
        CacheFsmController(min(initial, maximum), maximum),
    ):
        row, text = controller.start(), [0]
        for tokens, follows in rounds:
            gamma = row.next_gamma(1)
            assert 0 <= gamma <= maximum
            accepted = tokens[:gamma]
            text += [*accepted, follows]
            row.observe(Observation(gamma, gamma, len(accepted), text))
