"""transformers' heuristic schedule, worked by hand."""

from __future__ import annotations

from osd.gamma.base import Observation
from osd.gamma.rules.fsm import HeuristicController
from tests.support.worlds import play_alone


def test_a_trace_worked_by_hand() -> None:
    # 3 of 3: 5; 4 of 5: 4; 0: 3; 0: 2; 0: 1; 0: at least 1; 1 of 1: 3; 3 of 3: 5; 5 of 5: 7; 7 of 7: 9, at most 8
    assert play_alone(HeuristicController(3, 8), [3, 4, 0, 0, 0, 0, 1, 3, 5, 7]) == [3, 5, 4, 3, 2, 1, 1, 3, 5, 7, 8]


def test_a_draft_cut_short_and_accepted_whole_counts_and_none_does_not() -> None:
    row = HeuristicController(4, 12).start()
    row.observe(Observation(gamma=2, drafted=2, accepted=2))
    assert row.next_gamma(1) == 6
    row.observe(Observation(gamma=0, drafted=0, accepted=0))
    assert row.next_gamma(1) == 6


def test_each_request_starts_anew_and_at_1_or_more() -> None:
    controller = HeuristicController(0, 8)
    assert play_alone(controller, [1]) == [1, 3]
    assert play_alone(controller, []) == [1]
