"""From a draft's peak to a chance, and how requests lean."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.plain_calibration import EDGES, PEAKS, START, Calibration, Lean, bin_of


def test_a_peak_is_worth_itself_until_something_is_known() -> None:
    fresh = Calibration()
    assert [fresh.chance(bin_of(peak)) for peak in (0.05, 0.25, 0.85, 0.96)] == pytest.approx([0.05, 0.25, 0.85, 0.965])


def test_verdicts_worked_by_hand() -> None:
    # the bin of 0.8 to 0.9 begins as 4 tokens of which 0.85 are accepted; 2 of 6 more are. All bins together: 2 tokens
    # accepted and 2 rejected, 2 expected to be and 2 not, of each token 0.99 is kept a token later; the 4 lean by that
    seen = Calibration()
    for accepted in (True, False, False, True, False, False):
        seen.saw(bin_of(0.83), accepted)
    weights = [0.99**age for age in range(6)]
    taken, refused = 2 + weights[5] + weights[2], 2 + weights[4] + weights[3] + weights[1] + weights[0]
    odds = taken * (2 + 0.15 * sum(weights)) / (refused * (2 + 0.85 * sum(weights)))
    assert seen.chance(bin_of(0.83)) == pytest.approx((2 + 4 * odds * 0.85 / (odds * 0.85 + 0.15)) / 10)
    assert seen.chance(bin_of(0.75)) == pytest.approx(odds * 0.75 / (odds * 0.75 + 0.25))


def test_bins_meet_at_their_edges() -> None:
    assert [bin_of(edge) for edge in EDGES] == list(range(1, PEAKS))
    assert (bin_of(0.0), bin_of(0.9999)) == (0, PEAKS - 1)
    assert (bin_of(1.0), bin_of(1.49), bin_of(1.5), bin_of(1.9999)) == (PEAKS, PEAKS, PEAKS + 1, PEAKS + 1)


def test_what_the_text_said_before_is_learned_apart_from_peaks() -> None:
    seen = Calibration()
    assert seen.chance(bin_of(1.2)) == pytest.approx(0.8)
    for _ in range(40):
        seen.saw(bin_of(1.2), True)
        seen.saw(bin_of(0.25), False)
    assert seen.chance(bin_of(1.2)) > 0.9
    assert seen.chance(bin_of(0.25)) < 0.05
    assert seen.chance(bin_of(0.85)) < 0.8  # the draft's peaks are too high, and what the text said has no part in that


def test_it_learns_what_an_overconfident_draft_is_worth_and_forgets_it() -> None:
    chance, seen = random.Random(1), Calibration()
    for _ in range(400):
        seen.saw(bin_of(0.99), chance.random() < 0.3)
    assert seen.chance(bin_of(0.99)) == pytest.approx(0.3, abs=0.08)
    for _ in range(3000):
        seen.saw(bin_of(0.99), chance.random() < 0.9)
    assert seen.chance(bin_of(0.99)) == pytest.approx(0.9, abs=0.06)


def test_a_bin_that_nobody_tries_goes_back_to_the_peak_itself() -> None:
    seen = Calibration()
    for _ in range(60):
        seen.saw(bin_of(0.65), False)
    assert seen.chance(bin_of(0.65)) < 0.06
    for _ in range(5 * 512):
        seen.saw(bin_of(0.99), True)
    assert seen.chance(bin_of(0.65)) > 0.3  # so that it is tried again


def test_what_comes_next_is_counted_by_what_came_before() -> None:
    seen = Calibration()
    for _ in range(200):
        seen.passed(START, bin_of(0.3))
        seen.passed(bin_of(0.3), bin_of(0.97))
    for _ in range(16):
        seen.saw(bin_of(0.5), True)  # the guesses are worked out again
    [(_, weight, chance)] = seen.following(START)
    assert (weight, chance) == (1.0, pytest.approx(seen.chance(bin_of(0.3))))
    assert seen.following(bin_of(0.3))[0][2] == pytest.approx(seen.chance(bin_of(0.97)))
    assert len(seen.following(bin_of(0.7))) == PEAKS  # nothing known: any peak may follow


def test_a_request_that_is_accepted_oftener_than_expected_leans_up() -> None:
    # 3 accepted and 3 rejected tokens are expected beforehand; each token keeps 0.97 of what was
    up, down = Lean(), Lean()
    assert up.of(0.4) == pytest.approx(0.4)
    up.saw(0.5, True)
    # accepted 3 + 1, rejected 3, expected 3 + 0.5 of each: odds 4 · 3.5 / (3 · 3.5)
    assert up.odds == pytest.approx(4 / 3)
    assert up.of(0.5) == pytest.approx(4 / 7)
    for _ in range(60):
        down.saw(0.8, False)
    assert down.of(0.8) < 0.2


@example([(0.5, False), (0.5, False)], 1.0)  # rounding made this one more than 1
@given(st.lists(st.tuples(st.floats(0.001, 0.999), st.booleans()), max_size=80), st.floats(0.0, 1.0))
def test_a_chance_stays_a_chance(verdicts: list[tuple[float, bool]], chance: float) -> None:
    lean = Lean()
    for expected, accepted in verdicts:
        lean.saw(expected, accepted)
    assert 0.0 <= lean.of(chance) <= 1.0
