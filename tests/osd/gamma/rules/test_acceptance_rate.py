"""Eqs. 2, 9, 10, 11 and 12 of on-the-fly adaptation, against brute force."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osd.gamma.rules.analytic import Rounds, ratio, truncated, truncated_mean
from storage.insights.statistics import tokens_per_round as expected_tokens

rounds_of = st.lists(
    st.integers(1, 12).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted))),
    min_size=1,
    max_size=16,
)
GRID = [i / 2000 for i in range(1, 2000)]


def _truncated_slope(beta: float, gamma: int) -> float:
    """Return dE[y]/dβ = Var[y] ÷ β (an exponential family), β > 0."""
    weight = total = 1.0
    first = second = 1.0
    for y in range(2, gamma + 2):
        weight *= beta
        total, first, second = total + weight, first + y * weight, second + y * y * weight
    return (second / total - (first / total) ** 2) / beta


def truncated_newton(rounds: Rounds, tolerance: float = 1e-12) -> float | None:
    """Find the root of Eq. 11 in [0, 1] by Newton's method kept inside a bracket.

    1.0 when there is none below 1: when the mean of y exceeds (γ + 2) / 2. None without rounds.
    """
    if not rounds:
        return None
    wanted = sum(accepted + 1 for _, accepted in rounds)
    if wanted <= len(rounds):
        return 0.0
    if wanted >= sum((drafted + 2) / 2 for drafted, _ in rounds):
        return 1.0
    low, high, beta = 0.0, 1.0, 0.5
    for _ in range(100):
        excess = sum(truncated_mean(beta, drafted) for drafted, _ in rounds) - wanted
        low, high = (low, beta) if excess > 0 else (beta, high)
        step = beta - excess / sum(_truncated_slope(beta, drafted) for drafted, _ in rounds)
        following = step if low < step < high else (low + high) / 2
        if abs(following - beta) < tolerance:
            return following
        beta = following
    return beta


def censored_likelihood(beta: float, rounds: list[tuple[int, int]]) -> float:
    """log Π β^V (1 − β)^[V < γ]: what decoding does."""
    return sum(v * math.log(beta) + (v < gamma) * math.log(1 - beta) for gamma, v in rounds)


def truncated_likelihood(beta: float, rounds: list[tuple[int, int]]) -> float:
    """log Π f(V + 1) with f of Eq. 10."""
    return sum(math.log((1 - beta) * beta**v / (1 - beta ** (gamma + 1))) for gamma, v in rounds)


def test_expected_tokens_by_enumerating_every_outcome() -> None:
    beta, gamma = 0.7, 4
    mean = 0.0
    for coins in product([True, False], repeat=gamma):
        accepted = coins.index(False) if False in coins else gamma
        mean += math.prod(beta if coin else 1 - beta for coin in coins) * (accepted + 1)
    assert expected_tokens(beta, gamma) == pytest.approx(mean)
    assert expected_tokens(beta, gamma) == pytest.approx((1 - beta**5) / (1 - beta))  # Eq. 9


def test_ratio_worked_by_hand() -> None:
    # V = 4 of 4, 1 of 5, 0 of 3: ΣV = 5, two rounds with V < γ: 5 / (5 + 2)
    assert ratio(5, 2) == pytest.approx(5 / 7)
    assert ratio(0, 3) == 0.0
    assert ratio(0, 0) is None


@settings(max_examples=60)
@given(rounds_of)
def test_ratio_is_the_likeliest_value_of_what_decoding_does(rounds: list[tuple[int, int]]) -> None:
    accepted = sum(v for _, v in rounds)
    rejections = sum(v < gamma for gamma, v in rounds)
    best = max(GRID, key=lambda beta: censored_likelihood(beta, rounds))
    assert ratio(accepted, rejections) == pytest.approx(best, abs=1e-3)


@settings(max_examples=60)
@given(rounds_of)
def test_newton_finds_the_likeliest_value_of_eq_10(rounds: list[tuple[int, int]]) -> None:
    best = max(GRID, key=lambda beta: truncated_likelihood(beta, rounds))
    assert truncated_newton(rounds) == pytest.approx(best, abs=1e-3)


@given(rounds_of)
def test_the_table_agrees_with_newton(rounds: list[tuple[int, int]]) -> None:
    assert truncated(rounds) == pytest.approx(truncated_newton(rounds), abs=2e-4)


@given(st.floats(0, 1), st.integers(1, 12))
def test_decoding_emits_more_than_eq_10_expects(beta: float, gamma: int) -> None:
    # min(G, γ + 1) against G given G ≤ γ + 1: so the root that explains many rounds lies above their true chance
    assert expected_tokens(beta, gamma) >= truncated_mean(beta, gamma) - 1e-12


def test_eq_11_overrates_where_eq_2_does_not() -> None:
    # 10,000 rounds of γ = 3 in exactly the shares that a chance of 0.5 gives: V = 0, 1, 2, 3 with 1/2, 1/4, 1/8, 1/8
    rounds = [(3, 0)] * 5000 + [(3, 1)] * 2500 + [(3, 2)] * 1250 + [(3, 3)] * 1250
    assert ratio(sum(v for _, v in rounds), 8750) == pytest.approx(0.5)
    root = truncated_newton(rounds)  # mean of y 1.875: (1 + 2β + 3β² + 4β³) / (1 + β + β² + β³) = 1.875 at 0.583
    assert root == pytest.approx(0.583, abs=1e-3)


@pytest.mark.parametrize(("gamma", "accepted"), [(1, [0, 1, 0]), (3, [0, 1, 2, 0]), (6, [2, 0, 3, 1, 5])])
def test_newton_solves_the_polynomial_of_eq_11(gamma: int, accepted: list[int]) -> None:
    n, total = len(accepted), sum(accepted) + len(accepted)  # n and Σ y, y = V + 1
    beta = truncated_newton([(gamma, v) for v in accepted])
    assert beta is not None and 0 < beta < 1
    polynomial = (
        (total - n * (gamma + 2) + n) * beta ** (gamma + 2)
        + (n * (gamma + 2) - total) * beta ** (gamma + 1)
        - total * beta
        + total
        - n
    )
    assert polynomial == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("gamma", [1, 4, 9])
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_eq_12_with_the_coefficient_that_follows_from_eq_11(gamma: int, beta: float) -> None:
    bottom = beta ** (gamma + 2) - beta ** (gamma + 1) - beta + 1
    top = (gamma + 1) * beta ** (gamma + 2) - (gamma + 2) * beta ** (gamma + 1) + 1
    assert truncated_mean(beta, gamma) == pytest.approx(top / bottom)
    by_eq_10 = [(1 - beta) * beta ** (y - 1) / (1 - beta ** (gamma + 1)) for y in range(1, gamma + 2)]
    assert sum(by_eq_10) == pytest.approx(1)
    assert truncated_mean(beta, gamma) == pytest.approx(sum(y * f for y, f in enumerate(by_eq_10, start=1)))


def test_the_ends() -> None:
    assert truncated([]) is None and truncated_newton([]) is None
    for estimate in (truncated, truncated_newton):
        assert estimate([(4, 0), (2, 0)]) == 0.0
        assert estimate([(4, 4), (2, 2)]) == 1.0
        # one round of 4 with 3 accepted: y = 4 is above (γ + 2) / 2 = 3, the most that Eq. 12 can give
        assert estimate([(4, 3)]) == 1.0
