"""Theorem 4.3 of SpecDec++ in a world where every acceptance probability is known.

Each drafted token is accepted with a chance that is drawn anew, HIGH or LOW, and told at once. A round that drafted k
tokens with chances a_1 … a_k emits 1 + Σ_j a_1 ⋯ a_j tokens on average and costs k + TARGET. The policy with the most
tokens a millisecond is found by going back from the longest draft, with no thought of thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.gamma.costs import CostTable, Piece, Pieces
from benchmarks.gamma.rounds import RecordedText
from benchmarks.gamma.simulate import Simulated
from osd.gamma.base import CostModel, DraftDecision, GammaController, Observation, RowByRow, Signal
from osd.gamma.rules.fsm import FixedController
from tests.support.traces import sampled_trace, simulate

HIGH, LOW, SHARE = 0.95, 0.5, 0.7
TARGET, DEPTH = 6.0, 14
"""Milliseconds of a target pass, where a draft pass takes 1; tokens of a draft at most."""
TABLE = CostTable("known", "", Pieces((Piece(start_ms=1),)), Pieces((Piece(start_ms=TARGET),)))


def chance(high: int, low: int) -> float:
    """Π a_i after so many tokens of each kind: the chance that none is rejected."""
    return float(HIGH**high * LOW**low)


def gains(rate: float) -> Callable[[int, int], float]:
    """For each state, what drafting one more token and going on as well as can be wins over stopping, where a
    millisecond is worth ``rate`` tokens."""

    @cache
    def gain(high: int, low: int) -> float:
        if high + low == DEPTH:
            return -1.0
        after = (SHARE, high + 1, low), (1 - SHARE, high, low + 1)
        return sum(share * (chance(*state) + max(0.0, gain(*state))) for share, *state in after) - rate

    return gain


@cache
def best_rate() -> float:
    """Tokens a millisecond of the best policy: at this rate a round wins nothing, 1 − rate · TARGET + gain = 0."""
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if 1 - rate * TARGET + max(0.0, gains(rate)(0, 0)) > 0 else (low, rate)
    return low


class Threshold(RowByRow):
    """Stops as soon as 1 − Π a_i > h, with one row."""

    name = "threshold"
    signal: Signal = "confidence"

    def __init__(self, h: float) -> None:
        self._h, self._chance = h, 1.0

    def start(self) -> Threshold:
        return self

    def next_gamma(self, batch: int) -> int:
        self._chance = 1.0
        return DEPTH

    def keep_drafting(self, signal: float) -> DraftDecision:
        self._chance *= signal
        return DraftDecision.LAST if 1 - self._chance > self._h else DraftDecision.ON

    def observe(self, seen: Observation) -> None:
        pass


@cache
def world() -> RecordedText:
    """A long text in which the draft's confidence is the chance itself."""
    chances = np.where(np.random.default_rng(0).random((12_000, DEPTH)) < SHARE, HIGH, LOW).astype(np.float32)
    return replace(sampled_trace(12_000, DEPTH), acceptance=chances, confidence=chances, peak=chances)


def played(make: Callable[[CostModel], GammaController]) -> Simulated:
    return simulate([world()], make, TABLE)


def optimal_threshold() -> tuple[float, float]:
    """1 − Π a_i of the surest state in which the best policy stops, and of the least sure in which it goes on."""
    gain = gains(best_rate())
    states = [(high, low) for high in range(DEPTH - 3) for low in range(DEPTH - 3 - high)]
    stops = [1 - chance(*state) for state in states if gain(*state) < 0]
    return min(stops), max(1 - chance(*state) for state in states if gain(*state) >= 0)


def test_the_best_policy_is_a_threshold_on_the_chance_of_a_rejection() -> None:
    stops, goes_on = optimal_threshold()
    assert 0 < goes_on < stops < 1


def test_where_the_theorem_says_stop_the_best_policy_stops() -> None:
    """P(a rejection) ≥ (c₂ + Δ) ÷ (c₁ + c₂ + Δ), c₁ = 1 and c₂ = TARGET − 1. Δ bounds what the state after going on may
    be worth beyond the prefix after stopping: at most DEPTH tokens, each c₁ less than a token usually takes."""
    _, goes_on = optimal_threshold()
    delta = DEPTH * (1 / best_rate() - 1)
    enough = (TARGET - 1 + delta) / (TARGET + delta)
    assert goes_on < enough < 1
    assert goes_on < 0.6 < 0.95 < enough  # so it is enough to stop, and far from necessary


def test_the_simulator_finds_the_best_threshold_by_trying() -> None:
    stops, goes_on = optimal_threshold()
    tried = {h: played(lambda costs, h=h: Threshold(h)).tokens_per_second / 1e3 for h in np.linspace(0.05, 0.95, 19)}  # type: ignore[misc]
    rates = list(tried.values())
    best = max(tried, key=tried.__getitem__)
    at_optimum = played(lambda costs: Threshold((stops + goes_on) / 2)).tokens_per_second / 1e3
    assert at_optimum == pytest.approx(best_rate(), rel=0.03)  # two standard errors of 12,000 tokens, by a fixed seed
    assert at_optimum > 0.99 * max(rates)
    assert rates[0] < 0.9 * max(rates) > rates[-1]  # and it matters
    assert abs(best - (stops + goes_on) / 2) < 0.2


def test_no_fixed_gamma_is_as_good() -> None:
    rates = [played(lambda costs, g=g: FixedController(g)).tokens_per_second / 1e3 for g in range(DEPTH)]  # type: ignore[misc]
    assert max(rates) < 0.97 * best_rate()
