"""Theorem 4.1 of SpecDec++."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest

from benchmarks.gamma.costs import CostCells, CostTable
from benchmarks.gamma.oracle import OracleController, oracle_lengths
from benchmarks.gamma.rounds import RecordedText
from osd.gamma.base import Observation
from storage.errors import BadInput
from tests.support.traces import agreeing_trace, sampled_trace, simulate

FREE = CostTable("flat", "", CostCells([(1, 1, 1.0)]), CostCells([(1, 1, 5.0)]))
HAND = [True, True, False, True, False, False, True, True]  # S = {2, 4, 5}


def drawn(seed: int, n: int = 40, share: float = 0.7) -> RecordedText:
    chance = random.Random(seed)
    return agreeing_trace([chance.random() < share for _ in range(n)], depth=n)


def cheapest(trace: RecordedText, draft_ms: float, target_ms: float) -> float:
    """The plain reference: the least milliseconds over every way to size every draft of the text."""
    matches, n = trace.matches().tolist(), trace.length

    @cache
    def rest(position: int) -> float:
        if position >= n:
            return 0.0
        lengths = range(n - position)
        return min(
            draft_ms * length + target_ms + rest(position + min(length, matches[position]) + 1) for length in lengths
        )

    return rest(0)


def counted(traces: Sequence[RecordedText], maximum: int = 99) -> tuple[int, int, int]:
    """What the theorem counts: tokens emitted, rounds, and tokens drafted, all of which are accepted."""
    rounds = drafted = 0
    for trace in traces:
        lengths, position = oracle_lengths(trace, maximum), 0
        while position < trace.length:
            rounds, drafted = rounds + 1, drafted + lengths[position]
            position += lengths[position] + 1
    return sum(trace.length for trace in traces), rounds, drafted


def test_a_text_worked_by_hand() -> None:
    """Rounds: 2 accepted and token 2; 1 and token 4; 0 and token 5; then token 6, and the target's 7 for nothing."""
    trace = agreeing_trace(HAND)
    assert oracle_lengths(trace, 4) == [2, 1, 0, 1, 0, 0, 1, 0]
    emitted, rounds, drafted = counted([trace])
    assert (emitted, rounds, drafted) == (8, 4, 4)
    assert rounds == HAND.count(False) + 1  # N_target = |S| + 1
    assert emitted == rounds + drafted  # N_discarded = 0


def test_a_text_that_ends_in_a_disagreement_takes_a_pass_less() -> None:
    assert counted([agreeing_trace([*HAND, False])])[1] == 4 == len([2, 4, 5, 8])


@pytest.mark.parametrize("seed", range(5))
def test_no_other_sizes_of_drafts_are_cheaper(seed: int) -> None:
    trace = drawn(seed, share=0.5 + 0.1 * seed)
    _, rounds, drafted = counted([trace])
    for draft_ms, target_ms in ((1.0, 5.0), (1.0, 1.5), (0.1, 20.0)):
        assert draft_ms * drafted + target_ms * rounds == pytest.approx(cheapest(trace, draft_ms, target_ms))


def test_a_bound_on_drafts_costs_passes() -> None:
    trace = agreeing_trace([True] * 9 + [False], depth=10)  # nine accepted, then the target's own
    assert counted([trace]) == (10, 1, 9)
    assert counted([trace], maximum=4) == (10, 2, 8)  # the target's own token of the first pass is the fifth


@pytest.mark.parametrize("batch", [1, 3])
def test_the_controller_does_in_the_simulator_what_the_theorem_counts(batch: int) -> None:
    traces = [drawn(seed, n=10 + 7 * seed) for seed in range(6)]
    done = simulate(traces, lambda costs: OracleController(traces, maximum=10), FREE, batch=batch)
    assert (done.tokens, done.rounds, done.drafted) == counted(traces, maximum=10)
    assert done.accepted == done.drafted


def test_a_row_past_its_text_drafts_nothing() -> None:
    controller = OracleController([agreeing_trace(HAND)], 4)
    row = controller.start()
    assert controller.plan([row], [9], 1) == [2]
    row.observe(Observation(2, 2, 2))
    assert controller.plan([row], [9], 1) == [1]
    row.observe(Observation(9, 9, 9))
    assert controller.plan([row], [9], 1) == [0]


def test_what_an_oracle_cannot_know_is_refused() -> None:
    with pytest.raises(BadInput, match="greedy"):
        oracle_lengths(sampled_trace(4, 2), 2)
    controller = OracleController([agreeing_trace(HAND)], 4)
    controller.start()
    with pytest.raises(BadInput, match="fewer traces"):
        controller.start()
