"""SpecDec++'s stopping rule against Algorithm 1 worked by hand."""

from __future__ import annotations

import logging
import random
from math import nan

import pytest

from osd.gamma.base import CostModel, DraftDecision, Observation
from osd.gamma.rules.specdecpp import SpecDecController, SpecDecRow
from storage.errors import BadSetting
from storage.settings import load_settings


def drafted_of(controller: SpecDecController, row: SpecDecRow, signals: list[float]) -> int:
    """Candidates of one round whose draft passes bring these estimates: the first is of no candidate."""
    gamma = controller.plan([row], [99], 1)[0]
    for drafted in range(1, gamma + 1):
        (go,) = controller.should_continue([row], drafted, [signals[drafted - 1]])
        if go is not DraftDecision.ON:
            return drafted - (go is DraftDecision.DECLINE)
    return gamma


def seeing(threshold: float, maximum: int = 20) -> tuple[SpecDecController, SpecDecRow]:
    controller = SpecDecController(threshold, initial=1, maximum=maximum)
    row = controller.start()
    assert drafted_of(controller, row, [0.5]) == 1  # before a signal came it does not know that there is a head
    return controller, row


def test_algorithm_1_by_hand() -> None:
    """h = 0.7. Pass 2 brings the estimate of y_1, and y_2 is drawn by then: it is verified with it (K = i).

    0.9           1 − 0.9                   = 0.10
    0.9·0.8       1 − 0.72                  = 0.28
    0.9·0.8·0.5   1 − 0.36                  = 0.64
    0.9·0.8·0.5·0.8   1 − 0.288             = 0.712 > 0.7: stop at pass 5, K = 5
    """
    controller, row = seeing(0.7)
    assert drafted_of(controller, row, [0.01, 0.9, 0.8, 0.5, 0.8, 0.9, 0.9]) == 5
    # the next round starts anew with P̂ = 1; a token that is surely refused ends it at once
    assert drafted_of(controller, row, [0.99, 0.2, 0.9]) == 2
    # exactly at the threshold is not above it: 1 − 0.5 = 0.5
    controller, row = seeing(0.5)
    assert drafted_of(controller, row, [1.0, 0.5, 1.0, 0.999, 1.0]) == 4


def test_the_estimate_of_the_first_pass_does_not_count() -> None:
    controller, row = seeing(0.3)
    assert drafted_of(controller, row, [0.0, 1.0, 0.6, 1.0]) == 3


@pytest.mark.parametrize(("maximum", "longest"), [(12, 12), (20, 20), (64, 20)])
def test_never_more_than_twenty(maximum: int, longest: int) -> None:
    controller, row = seeing(0.7, maximum)
    assert drafted_of(controller, row, [1.0] * 99) == longest


def test_rows_have_products_of_their_own() -> None:
    controller, _ = seeing(0.7)
    rows = [controller.start() for _ in range(3)]
    controller.plan(rows, [20] * 3, 3)
    assert controller.should_continue(rows, 1, [0.1] * 3) == [DraftDecision.ON] * 3
    assert controller.should_continue(rows, 2, [0.5, 0.2, 0.9]) == [
        DraftDecision.ON,
        DraftDecision.LAST,
        DraftDecision.ON,
    ]
    assert controller.should_continue([rows[0], rows[2]], 3, [0.5, 0.9]) == [DraftDecision.LAST, DraftDecision.ON]


@pytest.mark.parametrize(("initial", "tokens"), [(0, 1), (1, 1), (4, 4)])
def test_without_a_head_it_drafts_gamma_initial_and_says_so_once(
    initial: int, tokens: int, caplog: pytest.LogCaptureFixture
) -> None:
    controller = SpecDecController(0.7, initial=initial, maximum=12)
    row = controller.start()
    with caplog.at_level(logging.INFO, "osd.gamma.rules.specdecpp"):
        assert [drafted_of(controller, row, [nan] * 20) for _ in range(3)] == [tokens] * 3
    assert [record.action for record in caplog.records] == ["no_head"]  # type: ignore[attr-defined]
    drafted_of(controller, row, [1.0] * 20)  # a head is there now
    assert drafted_of(controller, row, [1.0] * 20) == 12


@pytest.mark.parametrize("threshold", [0, 1, -0.1, 1.5])
def test_a_threshold_outside_0_to_1_is_refused(threshold: float) -> None:
    with pytest.raises(BadSetting, match=r"gamma\.specdecpp\.threshold"):
        load_settings(gamma={"specdecpp": {"threshold": threshold}})


def world(chances: list[float], draft_ms: float, threshold: float | str, rounds: int = 1500) -> float:
    """Tokens a millisecond ÷ plain decoding's, of 10 ms a pass; a token has one of these chances, and the head says so,
    but with a sixth of the odds, as it is trained."""
    chance, costs = random.Random(1), CostModel()
    for _ in range(8):
        for depth in range(1, 7):
            costs.observe_draft(1, depth, draft_ms * depth)
            costs.observe_verify(1, depth, 10.0)
    controller = SpecDecController(threshold, initial=4, maximum=12, costs=costs)  # type: ignore[arg-type]
    row, tokens, ms = controller.start(), 0, 0.0
    for _ in range(rounds):
        drawn = [chance.choice(chances) for _ in range(13)]
        said = [0.5, *(each / (each + 6 * (1 - each)) for each in drawn)]
        drafted = drafted_of(controller, row, said)
        taken = 0
        while taken < drafted and chance.random() < drawn[taken]:
            taken += 1
        row.observe(Observation(min(1, drafted), drafted, taken))
        tokens, ms = tokens + taken + 1, ms + 10.0 + draft_ms * drafted
    return 10.0 * tokens / ms


@pytest.mark.parametrize(("chances", "draft_ms"), [([0.98, 0.98, 0.98, 0.2], 1.0), ([0.9], 2.0), ([0.95, 0.5], 0.5)])
def test_h_from_costs_is_about_the_best_in_hindsight(chances: list[float], draft_ms: float) -> None:
    best = max(world(chances, draft_ms, h) for h in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99))
    assert world(chances, draft_ms, "costs") > 0.96 * best


def test_with_h_from_costs_it_rests_where_drafts_do_not_pay() -> None:
    assert world([0.1], 3.0, "costs") > 0.94 > 0.7 > world([0.1], 3.0, 0.7)


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_rests_are_rounds_however_many_rows_there_are(batch: int) -> None:
    controller = SpecDecController("costs", initial=4, maximum=12)
    rows = [controller.start() for _ in range(batch)]
    drafting = []
    for _ in range(400):
        lengths = controller.plan(rows, [99] * batch, batch)
        assert len(set(lengths)) == 1
        drafting.append(lengths[0] > 0)
        for row, length in zip(rows, lengths, strict=True):
            row.observe(Observation(1, length, -1 if length else 0))  # it loses whatever passes cost
    assert 0.05 < sum(drafting) / len(drafting) < 0.15, "8 rounds try after 64 that rest"
