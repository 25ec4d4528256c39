"""transformers' confidence threshold: worked by hand, and its adaptation against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from osd.gamma.base import DraftDecision, Observation
from osd.gamma.rules.confidence import STEPS, ConfidenceController, ConfidenceRow, Threshold


def draft(row: ConfidenceRow, scores: list[float], accepted: int) -> int:
    """A round whose tokens have these scores, as far as it goes: tokens drafted."""
    drafted = 0
    for score in scores[: row.next_gamma(1)]:
        drafted += 1
        if row.keep_drafting(score) is DraftDecision.LAST:
            break
    row.observe(Observation(row._gamma, drafted, min(accepted, drafted)))
    return drafted


def test_a_trace_worked_by_hand() -> None:
    row = ConfidenceController(6, tau=0.4).start()
    # ends after the first token below 0.4, which is still drafted; 0.4 itself is not below
    rounds = [([0.9, 0.4, 0.39, 0.9], 3), ([0.1], 0), ([0.9] * 9, 6), ([0.5, 0.2, 0.1], 0)]
    assert [draft(row, *each) for each in rounds] == [3, 1, 6, 2]


def test_a_threshold_that_moves_worked_by_hand() -> None:
    row = ConfidenceController(12, tau=0.4, adapts=True).start()
    # six judged tokens: accepted 0.9 0.8 0.6, refused 0.5, then accepted 0.7, refused 0.5
    assert draft(row, [0.9, 0.8, 0.6, 0.5, 0.9, 0.3], 3) == 6  # those after 0.5 were never judged
    assert row._threshold.tau == 0.4  # four samples only
    assert draft(row, [0.7, 0.5, 0.3], 1) == 3
    # cost at 0.6 (0.59375 in 64ths): no refused one is drafted, no accepted one missed: 0. At 0.7: 3 · 1/4
    assert row._threshold.tau == 38 / 64
    assert draft(row, [0.7, 0.59, 0.9], 2) == 2


def test_one_label_alone_moves_nothing() -> None:
    row = ConfidenceController(12, tau=0.4, adapts=True).start()
    draft(row, [0.9] * 8, 8)
    assert row._threshold.tau == 0.4


def test_where_the_likely_ones_are_refused_a_draft_is_one_token() -> None:
    row = ConfidenceController(12, tau=0.2, adapts=True).start()
    for _ in range(5):
        draft(row, [0.9], 0)
    draft(row, [0.3, 0.9], 1)
    # at 0.9: all refused drafted, the accepted one missed, 1 + 3; at 0.3: 1 + 0; nothing drafted: 3
    assert row._threshold.tau == pytest.approx(19 / 64)
    threshold = Threshold(0.5)
    for score, accepted in [(0.9, False)] * 5 + [(0.1, True)]:
        threshold.add(score, accepted)
    threshold.move()
    assert threshold.tau == pytest.approx(6 / 64)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, STEPS), st.booleans()), min_size=1, max_size=60))
def test_it_moves_as_in_transformers(samples: list[tuple[int, bool]]) -> None:
    threshold = Threshold(0.4)
    for step, accepted in samples:
        threshold.add(step / STEPS, accepted)
    threshold.move()
    labels, scores = [accepted for _, accepted in samples], [step / STEPS for step, _ in samples]
    if len(samples) <= 5 or len(set(labels)) < 2:
        assert threshold.tau == 0.4
        return
    false_positive, true_positive, thresholds = roc_curve(labels, scores)
    costs = false_positive + 3 * (1 - true_positive)
    least = np.flatnonzero(costs <= costs.min() + 1e-9)[0]  # the first: the highest threshold
    assert threshold.tau == thresholds[least]
