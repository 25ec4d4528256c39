"""Throughput from acceptance and costs, against Monte Carlo and against the equations written out."""

from __future__ import annotations

import random

import pytest

from router.throughput import Costs, best_pace, expected_to_pay, larger_pays
from storage.insights.statistics import tokens_per_round

COSTS = Costs(0.5, [3.2 + 0.12 * gamma for gamma in range(13)])


def throughput(length: float, rounds: float, rho: float, costs: Costs, gamma: int) -> float:
    """R = L ÷ (b(γ) n + a L ÷ ρ), tokens a second (Theorem 2, Eq. 3)."""
    return 1e3 * length / (costs.verify_ms[gamma] * rounds + costs.draft_ms * length / rho)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("gamma", [0, 1, 5])
def test_tokens_of_a_round_are_the_sum_of_powers(alpha: float, gamma: int) -> None:
    assert tokens_per_round(alpha, gamma) == pytest.approx(sum(alpha**i for i in range(gamma + 1)))


def test_tokens_of_a_round_are_what_rounds_bring_on_average() -> None:
    """20,000 rounds at α = 0.7, γ = 4: the mean has a standard error of about 0.012; five of them fail once in 10⁶."""
    chance = random.Random(0)

    def one() -> int:
        accepted = 0
        while accepted < 4 and chance.random() < 0.7:
            accepted += 1
        return accepted + 1

    assert sum(one() for _ in range(20_000)) / 20_000 == pytest.approx(tokens_per_round(0.7, 4), abs=0.06)


def test_the_best_window_is_the_best_of_all() -> None:
    for alpha in (0.0, 0.2, 0.5, 0.9, 1.0):
        rates = [1e3 * tokens_per_round(alpha, g) / (g * 0.5 + 3.2 + 0.12 * g) for g in range(13)]
        best = best_pace(alpha, COSTS)
        assert best.tokens_per_s == pytest.approx(max(rates))
        assert rates[best.gamma] == pytest.approx(max(rates))


def test_a_hopeless_draft_is_left_alone() -> None:
    assert best_pace(0.0, COSTS).gamma == 0
    assert best_pace(0.0, COSTS).tokens_per_s == pytest.approx(1e3 / 3.2)


def test_equation_3_is_tokens_by_time() -> None:
    """L = 120 tokens in n = 40 rounds of γ = 4 with ρ = 120 ÷ (40 · 4): 40 · (b + 4 a) milliseconds."""
    rho = 120 / (40 * 4)
    expected = 120 / (40 * (COSTS.verify_ms[4] + 4 * COSTS.draft_ms)) * 1e3
    assert throughput(120, 40, rho, COSTS, 4) == pytest.approx(expected)


def test_theorem_3_says_which_of_two_drafts_is_faster() -> None:
    chance = random.Random(1)
    for _ in range(2_000):
        length, d = 100.0, chance.uniform(1, 8)
        rho = chance.uniform(0.15, 0.9), chance.uniform(0.15, 0.9)
        rounds = length / (d * rho[0]), length / (d * rho[1])
        c = chance.uniform(0.01, 0.2), chance.uniform(0.2, 0.6)
        speeds = [
            throughput(length, rounds[i], rho[i], Costs(c[i], [1.0] * 20), 4) for i in (0, 1)
        ]  # b = 1, as in the theorem
        assert larger_pays(length, rounds=rounds, rho=rho, c=c) == (speeds[1] > speeds[0])


def test_theorem_3_as_printed_would_choose_the_slower_draft() -> None:
    """ρ from 0.40 to 0.80, c from 0.05 to 0.30, d = 4, L = 100: n falls from 62.5 to 31.25 rounds, and the larger draft
    takes 31.25 + 37.5 against 62.5 + 12.5 units of time. Read literally, Δc ÷ Δρ · L = 62.5 > Δn = 31.25 refuses it."""
    rounds, rho, c = (62.5, 31.25), (0.4, 0.8), (0.05, 0.3)
    assert larger_pays(100, rounds=rounds, rho=rho, c=c)
    assert rounds[0] - rounds[1] < (c[1] - c[0]) / (rho[1] - rho[0]) * 100


def test_theorem_3_of_what_is_expected_is_eq_3_where_the_targets_pass_costs_the_same() -> None:
    chance = random.Random(2)
    for _ in range(500):
        alpha = chance.random(), chance.random()
        costs = Costs(chance.uniform(0.1, 2), [5.0] * 9), Costs(chance.uniform(2, 6), [5.0] * 9)
        speeds = [best_pace(a, cost).tokens_per_s for a, cost in zip(alpha, costs, strict=True)]
        if abs(speeds[1] - speeds[0]) > 1e-9 * speeds[0]:  # what ties may go either way
            assert expected_to_pay(alpha, costs) == (speeds[1] > speeds[0])
