"""Growth against scikit-learn's isotonic regression, and on costs with a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from osd.gamma.costs.model import CostModel
from osd.gamma.goodput.growth import _LINE, Growth, rising
from osd.gamma.goodput.prices import PriceList, prices_of
from tests.support.worlds import known_costs

points = st.lists(
    st.tuples(st.integers(1, 40), st.floats(0, 20), st.floats(0.01, 8)), min_size=1, max_size=14,
    unique_by=lambda point: point[0],
).map(sorted)  # fmt: skip


@given(points)
def test_what_rises_is_nearest_in_least_squares(some: list[tuple[int, float, float]]) -> None:
    at, ms, weights = zip(*some, strict=True)
    expected = IsotonicRegression().fit_transform(at, ms, sample_weight=weights)
    assert rising(some) == pytest.approx(expected.tolist(), abs=1e-6)


@given(points, st.floats(0, 5), st.floats(0, 2), st.integers(1, 60), st.integers(1, 9))
def test_no_token_costs_less_than_nothing(
    some: list[tuple[int, float, float]], jump: float, token: float, low: int, more: int
) -> None:
    grown = Growth(some, jump, token)
    assert 0.0 <= grown.of(low) <= grown.of(low + more) + 1e-9


def test_it_is_the_line_where_nothing_was_timed_and_where_the_line_is_right() -> None:
    line = Growth([(n, 0.5 + 0.2 * n, 8.0) for n in (2, 3, 6)], 0.5, 0.2)
    for grown in (Growth([], 0.5, 0.2), line):
        assert grown.of(0) == 0.0
        assert [grown.of(n) for n in (1, 2, 4, 30)] == pytest.approx([0.7, 0.9, 1.3, 6.5])


def test_a_point_of_few_timings_is_held_to_the_line() -> None:
    few = Growth([(1, 1.5, 8.0), (4, 9.0, 1.0)], 1.0, 0.5)
    assert few.of(4) == pytest.approx((9.0 + _LINE * 3.0) / (1 + _LINE))
    assert few.of(1) == 1.5 and few.of(6) == pytest.approx(few.of(4) + 1.0)


@pytest.mark.parametrize("rows", [1, 4])
def test_tokens_before_a_step_cost_nothing_and_those_on_it_all_of_it(rows: int) -> None:
    """A pass takes 4 ms, from a drafted token a row on 5, and 3 more from six a row on."""

    def stepped(batch: int, tokens: int) -> float:
        drafted = tokens - 1
        return 4.0 + (drafted > 0) + 3.0 * (drafted >= 6)

    prices = PriceList(known_costs(0.1, stepped, batches=(rows,))).of(rows)
    assert prices is not None
    taken = prices.by_depth(rows, 6)
    jump = prices.jump(rows)  # a row alone pays the step with its first token; several share it, whoever keeps one
    assert jump + rows * taken[0] > 0.7
    assert jump == 0 if rows == 1 else jump > 0.5
    assert max(taken[1:4]) < 0.1 / rows
    assert taken[5] > 1.5 / rows


def test_what_was_timed_seldom_or_long_ago_is_taken_to_be_cheaper_than_it_seemed() -> None:
    """A shape that began dear must be tried again, for nothing but trying it tells better."""
    costs = CostModel()

    def timed(tokens: int, ms: float, times: int) -> float:
        """What verifying eight tokens costs, after so many passes like this."""
        for _ in range(times):
            costs.observe_verify(8, tokens, ms)
        found = prices_of(costs, 8, 1.0)
        assert found
        return found.verifying.of(8)

    costs.observe_draft(8, 1, 1.0)
    timed(8, 10.0, 8)
    assert timed(16, 30.0, 2) < 0.5 * 20.0
    known = timed(16, 30.0, 30)
    assert known > 0.9 * 20.0
    assert timed(8, 10.0, 1000) < 0.6 * known


def test_shapes_that_come_seldom_are_known_by_those_nearby() -> None:
    """Eight rows that draft to different lengths verify another number of tokens in every round."""
    costs = CostModel()
    for drafted in (0, *range(4, 33, 2)):
        for _ in range(8 if drafted == 0 else 2):
            costs.observe_verify(8, 8 + drafted, 10.0 + 0.5 * drafted)
    costs.observe_draft(8, 1, 1.0)
    found = prices_of(costs, 8, 1.0)
    assert found and all(0.4 * n < found.verifying.of(n) < 0.6 * n for n in (8, 16, 24, 32))
