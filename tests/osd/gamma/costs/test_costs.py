"""The cost model: what was timed, what lies between, forgetting."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osd.gamma.costs.model import CostModel
from osd.gamma.costs.pass_times import TRUSTED, WINDOW


def timed(verify: dict[tuple[int, int], float], draft: dict[tuple[int, int], float] | None = None) -> CostModel:
    """Every cell timed often enough to be known."""
    costs = CostModel()
    for _ in range(TRUSTED):
        for (batch, tokens), ms in verify.items():
            costs.observe_verify(batch, batch * tokens, ms)
        for (batch, steps), ms in (draft or {}).items():
            costs.observe_draft(batch, steps, ms)
    return costs


def test_nothing_timed_is_nothing_known() -> None:
    costs = CostModel()
    assert costs.draft_ms(1, 1) is None
    assert costs.verify_ms(1, 1) is None
    costs.observe_verify(1, 5, 10.0)
    assert costs.verify_ms(1, 5) == pytest.approx(10.0, rel=0.02)
    assert costs.rounds_ms(1, 4) is None  # drafting was never timed


def test_one_timing_is_taken_at_its_word() -> None:
    costs = CostModel()
    costs.observe_verify(2, 10, 10.0)
    costs.observe_draft(2, 4, 6.0)
    assert costs.verify_ms(2, 10) == pytest.approx(10.0, rel=0.02)
    assert costs.draft_ms(2, 4) == pytest.approx(6.0, rel=0.02)
    assert costs.rounds_ms(2, 4)[4] == pytest.approx(16.0, rel=0.02)  # type: ignore[index]
    assert (costs.rounds, costs.plain_rounds) == (1, 0)


def test_a_line_fills_what_was_not_timed() -> None:
    # b(B, t) = 4 + 0.25 · B·t, a(B) = 1 + 0.5 · B
    costs = timed(
        {(b, t): 4 + 0.25 * b * t for b, t in [(1, 4), (1, 6), (4, 5)]},
        {(b, s): s * (1 + 0.5 * b) for b, s in [(1, 3), (4, 3)]},
    )
    assert costs.verify_ms(1, 1) == pytest.approx(4.25, rel=0.02)  # before what was timed
    assert costs.verify_ms(1, 5) == pytest.approx(5.25, rel=0.02)  # between
    assert costs.verify_ms(1, 13) == pytest.approx(7.25, rel=0.1)  # beyond
    assert costs.verify_ms(3, 6) == pytest.approx(5.5, rel=0.1)  # a batch that was never seen
    assert costs.draft_ms(2, 3) == pytest.approx(6.0, rel=0.1)
    assert costs.draft_ms(4, 7) == pytest.approx(21.0, rel=0.1)


def test_a_cell_timed_often_outweighs_the_line() -> None:
    costs = CostModel()
    for _ in range(200):
        for tokens, ms in [(1, 4.0), (2, 4.0), (3, 4.0), (4, 8.0)]:  # a step where the line is a slope
            costs.observe_verify(1, tokens, ms)
    for tokens, ms in [(1, 4.0), (2, 4.0), (3, 4.0), (4, 8.0)]:
        assert costs.verify_ms(1, tokens) == pytest.approx(ms, rel=0.05)


def test_a_falling_line_is_taken_as_level() -> None:
    costs = timed({(1, 4): 6.0, (1, 5): 5.0})
    far = costs.verify_ms(1, 40)
    assert far is not None and far >= 5.0


def test_outliers_and_noise_hardly_move_it() -> None:
    chance = random.Random(5)
    costs = CostModel()
    for _ in range(400):
        tokens = chance.choice([1, 3, 5])
        ms = (4 + 0.2 * tokens) * chance.lognormvariate(0, 0.1)
        costs.observe_verify(1, tokens, ms * (30 if chance.random() < 0.05 else 1))
    for tokens in range(1, 9):  # a fixed seed, so this holds or does not: no odds
        usual = (4 + 0.2 * tokens) * math.exp(-0.067)  # the lower quartile of such noise
        assert costs.verify_ms(1, tokens) == pytest.approx(usual, rel=0.08)


def test_a_lasting_change_is_learned() -> None:
    costs = timed({(1, 1): 4.0, (1, 5): 5.0})
    for _ in range(2 * WINDOW):
        costs.observe_verify(1, 5, 15.0)
    assert costs.verify_ms(1, 5) == pytest.approx(15.0, rel=0.05)


def test_what_is_not_timed_any_more_is_forgotten_for_what_is_timed_beside_it() -> None:
    costs = timed({(2, 1): 4.0, (2, 2): 10.0})  # 4 tokens at 10 ms: the machine was busy
    before = costs.verify_ms(2, 4)
    for _ in range(2000):
        costs.observe_verify(2, 2, 4.0)
        costs.observe_verify(2, 3, 4.2)
    after = costs.verify_ms(2, 4)
    assert before == pytest.approx(10.0, rel=0.05)
    assert after is not None and after < 5.0


def test_a_busy_machine_slows_what_is_not_being_timed_as_well() -> None:
    costs = timed({(1, 1): 4.0, (1, 5): 5.0}, {(1, 4): 4.0})
    for _ in range(12):
        costs.observe_verify(1, 5, 10.0)
    assert costs.verify_ms(1, 1) == pytest.approx(8.0, rel=0.05)
    assert costs.draft_ms(1, 4) == pytest.approx(8.0, rel=0.05)
    for _ in range(12):
        costs.observe_verify(1, 5, 5.0)
    assert costs.verify_ms(1, 1) == pytest.approx(4.0, rel=0.05)


def test_a_draft_that_begins_late_does_not_count_as_what_drafting_costs() -> None:
    costs = timed({(1, 1): 4.0}, {(1, 2): 2.0})
    costs.unread = 10
    for extra in (5.0, 7.0, 300.0, 6.0):
        costs.observe_draft(1, 2, 2.0 + extra)
    assert costs.draft_ms(1, 2) == pytest.approx(2.0, rel=0.02)
    assert costs.reading_ms == pytest.approx(0.6, rel=0.05)  # the middle one of 5, 6, 7, 300, the lower of two


def test_where_every_draft_begins_late_that_is_what_drafting_costs() -> None:
    costs = CostModel()
    costs.unread = 10
    for _ in range(2):
        costs.observe_draft(1, 2, 8.0)
    assert costs.draft_ms(1, 1) is None
    costs.observe_draft(1, 2, 8.0)
    assert costs.draft_ms(1, 2) == pytest.approx(8.0, rel=0.05)
    costs.unread = 0
    costs.observe_draft(1, 2, 2.0)
    assert costs.draft_ms(1, 2) == pytest.approx(2.0, rel=0.02)  # until one does not


@pytest.mark.parametrize("ms", [0.0, -1.0, math.nan, math.inf])
def test_a_timing_that_cannot_be_is_ignored(ms: float) -> None:
    costs = CostModel()
    costs.observe_verify(1, 1, ms)
    costs.observe_draft(1, 1, ms)
    costs.observe_draft(1, 0, 1.0)
    assert costs.verify_ms(1, 1) is None and costs.draft_ms(1, 1) is None


timings = st.lists(st.tuples(st.integers(1, 16), st.integers(1, 13), st.floats(0.01, 1e4)), min_size=1, max_size=60)


@given(timings, st.integers(1, 64), st.integers(1, 64))
def test_every_estimate_is_a_positive_time(seen: list[tuple[int, int, float]], batch: int, tokens: int) -> None:
    costs = CostModel()
    for at, count, ms in seen:
        costs.observe_verify(at, count, ms)
        costs.observe_draft(at, count, ms)
    for value in (costs.verify_ms(batch, tokens), costs.draft_ms(batch, tokens)):
        assert value is not None and 0 < value < math.inf


def test_drafts_do_not_look_dear_because_the_machine_was_slow_when_they_were_timed() -> None:
    """Nobody drafts any more while the machine becomes twice as fast: only plain rounds tell of it."""
    costs = CostModel()
    for _ in range(20):
        for tokens in (1, 2, 3):
            costs.observe_verify(1, tokens, 4.0 + 0.2 * tokens)
    for _ in range(300):
        costs.observe_verify(1, 1, 2.1)
    plain, two, three = (costs.verify_ms(1, tokens) for tokens in (1, 2, 3))
    assert plain == pytest.approx(2.1, rel=0.1)
    assert 0.0 <= two - plain < 0.25 and 0.0 <= three - plain < 0.45  # type: ignore[operator]
