"""What is timed before the first request: in turns, the least of each, the first turn left out."""

from __future__ import annotations

import random
from itertools import count

import pytest

from osd.gamma.costs.model import MOST_TURNS, READ, CostModel, probe


def true_pass(rows: int, width: int) -> float:
    return 4.0 + 0.1 * rows * width


def true_draft(rows: int, passes: int, unread: int) -> float:
    return (0.5 + 0.05 * rows) * passes + 0.02 * unread


def verify_ms(costs: CostModel, rows: int, tokens: int) -> float:
    return float(costs.verify_curve(rows, tokens).ms[-1])


def test_first_turns_and_interruptions_do_not_count() -> None:
    chance, asked, costs = random.Random(1), count(), CostModel()

    def late(ms: float) -> float:
        first = next(asked) < 11
        return ms * (20 if first else 30 if chance.random() < 0.4 else chance.uniform(1.0, 1.05))

    probe(costs, 8, 128, lambda *shape: late(true_pass(*shape)), lambda *draft: late(true_draft(*draft)))
    assert next(asked) == 11 * (1 + MOST_TURNS)
    assert verify_ms(costs, 8, 40) == pytest.approx(true_pass(8, 5), rel=0.1)
    assert verify_ms(costs, 1, 5) == pytest.approx(true_pass(1, 5), rel=0.1)
    assert costs.draft_curve(8, 4).ms[[0, -1]].tolist() == pytest.approx([0.9, 0.9], rel=0.1)
    assert costs.reading_ms == pytest.approx(0.02, rel=0.5)


def test_nothing_is_counted_and_a_target_alone_has_no_drafts_timed() -> None:
    costs = CostModel()
    probe(costs, 1, 0, true_pass, None)
    assert costs.rounds == 0 and costs.plain_rounds == 0 and not costs.known
    probe(costs, 1, 0, true_pass, true_draft)
    assert costs.known and READ == 64


def test_passes_of_an_engine_that_take_longer_than_its_probes_move_all_of_them() -> None:
    """What a round does beside its pass, and a machine that is busier now."""
    costs = CostModel()
    probe(costs, 8, 0, true_pass, true_draft)
    for _ in range(3):
        costs.observe_verify(8, 8, 2 * true_pass(8, 1))
    assert verify_ms(costs, 8, 40) == pytest.approx(2 * true_pass(8, 5), rel=0.1)
    assert verify_ms(costs, 1, 5) == pytest.approx(2 * true_pass(1, 5), rel=0.1)


def test_a_probe_that_was_wrong_is_forgotten_once_its_shape_is_timed() -> None:
    costs = CostModel()
    probe(costs, 1, 0, lambda rows, width: 4.0 if width == 1 else 40.0, true_draft)
    assert verify_ms(costs, 1, 5) > 20
    for _ in range(4):
        costs.observe_verify(1, 5, 4.4)
        costs.observe_verify(1, 1, 4.0)
    assert verify_ms(costs, 1, 5) < 5
