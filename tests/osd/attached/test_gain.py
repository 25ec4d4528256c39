"""The plugin's choice of draft lengths, against simulated engines: never much slower than without drafts, and near the
best length in hindsight where drafts are good."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from osd.attached.vllm.plugin.osd_vllm.gain import GainMeter

MOST = 4
Cost = Callable[[int, int], float]
"""Rows and draft length → seconds of a step."""


def cpu(rows: int, length: int) -> float:
    """Two cores: every token that is verified or drafted costs."""
    return 0.02 + 0.004 * rows * (1 + length) + 0.003 * length


def gpu(rows: int, length: int) -> float:
    """A GPU: passes cost, tokens do not, until there are many."""
    return 0.008 + 0.0008 * length + 0.00002 * max(0, rows * (1 + length) - 64)


def burdened(rows: int, length: int) -> float:
    """Many rows, each of whose tokens costs."""
    return 0.002 + 0.004 * rows * (1 + length)


@dataclass
class Machine:
    """An engine of so many rows whose draft is right with this chance at each place."""

    cost: Cost
    rows: int
    chance: float
    seed: int = 0
    seconds: float = 0.0
    plain: float = 0.0
    """Seconds that the target alone would have taken for the same tokens."""
    prefill: float = 0.0
    """Seconds of a prefill after every 24 tokens of a row."""

    def run(self, meter: GainMeter, steps: int) -> None:
        """Go on for some steps, whose times scatter by a tenth and drift."""
        chance, waiting = random.Random(self.seed), meter.length(self.rows)
        for number in range(steps):
            length, waiting = waiting, meter.length(self.rows)
            emitted = 0
            for _ in range(self.rows):
                kept = 0
                while kept < length and chance.random() < self.chance:
                    kept += 1
                meter.accepted(length, kept)
                emitted += kept + 1
            drift = 1 + 0.3 * (number // 1000 % 2)
            spent = self.cost(self.rows, length) * drift * chance.lognormvariate(0, 0.1)
            if length == waiting:
                meter.step(self.rows, length, spent, emitted)
            self.seconds += spent
            prefills = self.prefill * emitted / self.rows / 24
            meter.other_step(1, prefills, 0)
            self.seconds += prefills
            self.plain += self.cost(self.rows, 0) * drift * emitted / self.rows + prefills

    @property
    def gain(self) -> float:
        """Tokens a second ÷ those that the target alone would have had."""
        return self.plain / self.seconds

    def best(self) -> float:
        """The gain of the best length, in hindsight."""
        tokens = [sum(self.chance**j for j in range(length + 1)) for length in range(MOST + 1)]
        return max(tokens[n] * self.cost(self.rows, 0) / self.cost(self.rows, n) for n in range(MOST + 1))


COSTS = {"cpu": cpu, "gpu": gpu, "burdened": burdened}


@pytest.mark.parametrize("prefill", [0.05, 0.5])
def test_what_is_told_holds_over_prefills_too(prefill: float) -> None:
    machine, meter = Machine(gpu, 4, 0.8, prefill=prefill), GainMeter(MOST)
    machine.run(meter, 1000)
    late = Machine(gpu, 4, 0.8, seed=1, prefill=prefill)
    late.run(meter, 4000)
    told = meter.told()
    assert late.gain > 1.1 and abs(told["gain"] - late.gain) < 3 * told["error"] + 0.03


@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("cost", COSTS)
def test_it_is_never_slower_than_without_a_draft_and_near_the_best_length(cost: str, chance: float, rows: int) -> None:
    machine, meter = Machine(COSTS[cost], rows, chance), GainMeter(MOST)
    machine.run(meter, 1500)
    assert machine.gain > 0.955, "from the first step on"
    late = Machine(COSTS[cost], rows, chance, seed=1)
    late.run(meter, 6000)
    assert late.gain > 0.975 and late.gain > 0.96 * late.best()
    told = meter.told()
    assert abs(told["gain"] - late.gain) < 3 * told["error"] + 0.05


def test_a_turn_ends_where_no_step_tells_anything() -> None:
    meter, drafting = GainMeter(MOST), 0
    for number in range(2000):
        drafting += meter.length(4) > 0
        meter.other_step(4, 0.1, 4) if number % 40 else meter.step(4, meter.length(4), 0.1, 4)
    assert 0 < drafting < 0.1 * 2000


def test_a_worse_draft_is_let_go_and_a_better_one_taken_up() -> None:
    meter = GainMeter(MOST)
    for chance, drafts in ((0.8, True), (0.05, False), (0.8, True)):
        Machine(cpu, 1, chance).run(meter, 2500)
        assert (meter.length(1) > 0) == drafts
        meter.new_draft()


def test_each_batch_size_has_its_own_length_and_break_even_is_told() -> None:
    meter = GainMeter(MOST)
    for seed in range(3):
        for rows in (1, 8):
            Machine(burdened, rows, 0.8, seed).run(meter, 2500)
    assert meter.length(1) > 0 and meter.length(8) == 0
    (one, eight) = meter.told()["batches"]
    assert (one["rows"], eight["rows"], eight["length"]) == (1, 8, 0)
    length = eight["best"]
    needed = (burdened(8, length) / burdened(8, 0) - 1) / length
    assert eight["break_even"] == pytest.approx(needed, rel=0.15) and eight["gain"] < 1


def test_a_machine_that_became_quicker_after_a_rest_makes_no_draft_pay() -> None:
    meter = GainMeter(MOST)
    for seconds in (0.1, 0.2, 0.3):
        for _ in range(20):
            meter.rested(4, seconds, 4)
        meter.woke()
        for _ in range(20):
            meter.waited(4, 0.05, 4)
    assert meter.told()["batches"][0]["awake"] == 1.0
    Machine(cpu, 4, 0.02).run(meter, 1500)
    assert meter.length(4) == 0
    for _ in range(5):
        for _ in range(20):
            meter.rested(4, 0.1, 4)
        meter.woke()
        for _ in range(20):
            meter.waited(4, 0.11, 4)
    assert meter.told()["batches"][0]["awake"] == pytest.approx(1.1)
