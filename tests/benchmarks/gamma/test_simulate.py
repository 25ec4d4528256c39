"""The simulator against traces worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gamma.costs import CostTable, Piece, Pieces
from benchmarks.gamma.rounds import RecordedText
from benchmarks.gamma.simulate import Simulated, Simulator
from osd.gamma.base import CostModel, DraftDecision, GammaController, Observation, RowByRow, Signal
from osd.gamma.rules.analytic import AnalyticController
from osd.gamma.rules.confidence import ConfidenceController
from osd.gamma.rules.fsm import CountingRow, FixedController
from osd.gamma.rules.gammatune import GammaTuneController
from storage.errors import BadInput
from tests.support.traces import greedy_trace, sampled_trace, simulate

TABLE = CostTable("hand", "", Pieces((Piece(start_ms=1, row_ms=0.5),)), Pieces((Piece(start_ms=4, token_ms=0.25),)))


def seen(done: Simulated, request: int = 0) -> list[tuple[int, int, int]]:
    return [(r.gamma, r.drafted, r.accepted) for r in done.by_request[request]]


def fixed(gamma: int) -> GammaController:
    return FixedController(gamma)


class Stopping(RowByRow):
    """Plans ``most`` tokens and answers a signal below 0.5 with ``answer``."""

    name = "stopping"

    def __init__(self, signal: Signal, answer: DraftDecision, most: int = 4) -> None:
        self.signal: Signal = signal
        self._answer, self._most = answer, most

    def start(self) -> CountingRow:
        return CountingRow(self._most, self._most)

    def should_continue(self, rows: Sequence[object], drafted: int, signals: Sequence[float]) -> list[DraftDecision]:
        return [DraftDecision.ON if signal >= 0.5 else self._answer for signal in signals]


class Eavesdropping(RowByRow):
    """Remembers what it is told."""

    name = "eavesdropping"

    def __init__(self, gamma: int) -> None:
        self.told: list[tuple[int, int, int, list[int]]] = []
        self._gamma = gamma

    def start(self) -> Eavesdropping:
        return self

    def next_gamma(self, batch: int) -> int:
        return self._gamma

    def keep_drafting(self, signal: float) -> DraftDecision:
        raise AssertionError("not asked")

    def observe(self, seen: Observation) -> None:
        self.told.append((seen.gamma, seen.drafted, seen.accepted, list(seen.text)))


def test_fixed_gamma_worked_by_hand() -> None:
    """From 0: two of three are accepted, the target gives token 2. From 3: all three, and the target gives token 6."""
    trace = greedy_trace([2, 1, 0, 3, 2, 1, 0])
    done = simulate([trace], lambda costs: fixed(3), TABLE)
    assert seen(done) == [(3, 3, 2), (3, 3, 3)]
    assert (done.tokens, done.rounds, done.drafted, done.accepted) == (7, 2, 6, 5)
    assert (done.draft_ms, done.verify_ms) == (2 * 3 * 1.5, 2 * (4 + 4 * 0.25))
    assert done.tokens_per_second == pytest.approx(1e3 * 7 / 19)


def test_no_draft_is_one_pass_a_token_and_costs_no_drafting() -> None:
    done = simulate([greedy_trace([3, 2, 1, 0, 0])], lambda costs: fixed(0), TABLE)
    assert (done.rounds, done.drafted, done.draft_ms, done.draft_passes) == (5, 0, 0.0, 0)
    assert done.tokens_per_second == pytest.approx(1e3 / 4.25)


def test_a_length_limit_leaves_less_room_and_an_end_token_does_not() -> None:
    cut, ended = greedy_trace([0, 0, 0]), greedy_trace([0, 0, 0], end=9)
    assert [r[1] for r in seen(simulate([cut], lambda costs: fixed(4), TABLE))] == [2, 1, 0]
    assert [r[1] for r in seen(simulate([ended], lambda costs: fixed(4), TABLE))] == [4, 4, 4]


def test_tokens_accepted_past_an_end_token_count_as_the_engine_counts_them() -> None:
    done = simulate([greedy_trace([4, 4], end=9)], lambda costs: fixed(4), TABLE)
    assert seen(done) == [(4, 4, 4)]
    assert done.tokens == 2


def test_gammatune_goes_its_own_way_along_the_text() -> None:
    """η = ½, δ = 2, γ̄ = 2: two accepted of two → (2 + 4) ÷ 2 = 3; one of three → (3 + 1) ÷ 2 = 2; none → 1."""
    trace = greedy_trace([3, 9, 9, 1, 9, 0, 4, 4, 4, 4], end=30)
    done = simulate([trace], lambda costs: GammaTuneController(2, 8, eta=0.5, delta=2), TABLE)
    assert seen(done) == [(2, 2, 2), (3, 3, 1), (2, 2, 0), (1, 1, 1), (2, 2, 2)]


@pytest.mark.parametrize(
    ("answer", "drafted"), [(DraftDecision.LAST, [3, 1, 2, 0]), (DraftDecision.DECLINE, [2, 0, 1, 0])]
)
def test_a_signal_stops_a_draft_with_or_without_its_token(answer: DraftDecision, drafted: list[int]) -> None:
    """The signal is high along the match and low after it, so a draft ends at its first rejection or before it."""
    trace = greedy_trace([2, 1, 0, 0, 1, 0, 0])
    done = simulate([trace], lambda costs: Stopping("confidence", answer), TABLE)
    assert [r[1] for r in seen(done)] == drafted
    assert [r[2] for r in seen(done)] == [2, 0, 1, 0]
    assert done.draft_passes == 3 + 1 + 2  # a declined token's pass was made


def test_peak_is_another_number_than_confidence() -> None:
    trace = replace(greedy_trace([1, 0, 0]), peak=np.full((3, 4), 0.9, np.float32))
    assert [r[1] for r in seen(simulate([trace], lambda costs: Stopping("peak", DraftDecision.LAST), TABLE))] == [2, 0]


def test_a_heads_estimate_comes_with_the_pass_after_its_token() -> None:
    trace = greedy_trace([4] * 6, end=20)
    head = np.full((6, 4), 0.9, np.float32)
    head[:, 2] = 0.1  # the third pass doubts the second token
    with pytest.raises(BadInput, match="acceptance head"):
        simulate([trace], lambda costs: Stopping("acceptance", DraftDecision.DECLINE), TABLE)
    done = simulate([replace(trace, head=head)], lambda costs: Stopping("acceptance", DraftDecision.DECLINE), TABLE)
    assert [r[1] for r in seen(done)] == [2, 2]


def test_a_controller_sees_the_text_with_its_prompt() -> None:
    controller = Eavesdropping(2)
    simulate([greedy_trace([1, 0, 0, 0])], lambda costs: controller, TABLE)
    assert controller.told == [
        (2, 2, 1, [5, 6, 100, 101]),
        (1, 1, 0, [5, 6, 100, 101, 102]),
        (0, 0, 0, [5, 6, 100, 101, 102, 103]),
    ]


def test_rows_join_as_others_leave_and_share_their_passes() -> None:
    """Two at a time, nothing drafted, texts of 1, 3 and 2 tokens: passes over 2, 2, 2 rows and no more."""
    traces = [greedy_trace([0] * n) for n in (1, 3, 2)]
    done = simulate(traces, lambda costs: fixed(0), TABLE, batch=2)
    assert (done.target_passes, done.rounds, done.tokens) == (3, 6, 6)
    assert done.verify_ms == 3 * (4 + 2 * 0.25)


def test_the_leaving_rows_place_is_taken_by_the_last() -> None:
    class Asking(RowByRow):
        name = "asking"

        def __init__(self) -> None:
            self.seen: list[list[int]] = []

        def start(self) -> CountingRow:
            return CountingRow(0, 0)

        def plan(
            self, rows: Sequence[object], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()
        ) -> list[int]:
            self.seen.append(list(rooms))
            return [0] * len(rows)

    controller = Asking()
    simulate([greedy_trace([0] * n) for n in (2, 8, 9, 5)], lambda costs: controller, TABLE, batch=3)
    assert controller.seen[:3] == [[1, 7, 8], [0, 6, 7], [6, 5, 4]]  # 9 − 2 − 1, 8 − 2 − 1, 5 − 0 − 1


def test_a_pass_is_charged_by_its_tokens_and_drafting_by_its_longest_row() -> None:
    """One round of two rows, which have room for 2 and 3 drafted tokens: 3 draft passes, 3 + 4 tokens to verify."""
    done = simulate([greedy_trace([2] * 3), greedy_trace([3] * 4)], lambda costs: fixed(3), TABLE, batch=2)
    assert (done.target_passes, done.drafted) == (1, 5)
    assert (done.draft_ms, done.verify_ms) == (3 * (1 + 2 * 0.5), 4 + 7 * 0.25)


def test_the_cost_model_is_fed_what_the_table_says() -> None:
    told: list[CostModel] = []

    def make(costs: CostModel) -> GammaController:
        told.append(costs)
        return fixed(2)

    simulate([greedy_trace([0] * 40, end=60)], make, TABLE)
    assert told[0].draft_ms(1, 2) == pytest.approx(3.0, rel=0.02)
    assert told[0].verify_ms(1, 3) == pytest.approx(4.75, rel=0.02)
    assert told[0].rounds == 40


def test_a_drafter_that_has_not_read_the_text_takes_longer() -> None:
    """A prompt of 2 is read along; after six rounds without a draft, 8 tokens are unread and 7 of them come first."""

    class Late(RowByRow):
        name = "late"

        def start(self) -> CountingRow:
            return CountingRow(0, 0)

        def plan(
            self, rows: Sequence[object], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()
        ) -> list[int]:
            return [1 if rooms[0] in (3, 2) else 0]

    table = replace(TABLE, catch_up_token_ms=0.125)
    done = simulate([greedy_trace([0] * 10)], lambda costs: Late(), table)
    assert done.draft_ms == 2 * 1.5 + 7 * 0.125  # the second draft has read what the first did


def test_noise_repeats_by_seed_and_keeps_the_counts() -> None:
    traces = [greedy_trace([1, 0] * 20) for _ in range(3)]
    plain, one, again, other = (
        simulate(traces, lambda costs: fixed(2), TABLE, noise=noise, seed=seed)
        for noise, seed in ((0.0, 1), (0.2, 1), (0.2, 1), (0.2, 2))
    )
    assert one.draft_ms == again.draft_ms != other.draft_ms
    assert one.draft_ms == pytest.approx(plain.draft_ms, rel=0.2)
    assert one.by_request == plain.by_request


def test_coins_of_sampled_texts_are_the_same_for_every_controller() -> None:
    trace = sampled_trace(200, 6)
    lengths = [min(m, 2) for m in trace.matches(7).tolist()]
    done = simulate([trace], lambda costs: fixed(2), TABLE, seed=7)
    position, expected = 0, []
    while position < 200:
        drafted = min(2, 199 - position)
        expected.append((drafted, drafted, min(lengths[position], drafted)))
        position += expected[-1][2] + 1
    assert seen(done) == expected


def test_what_is_learned_stays_between_runs() -> None:
    trace = greedy_trace([0] * 30)
    simulator = Simulator(lambda costs: AnalyticController(costs, initial=4, maximum=4), TABLE)
    first, second = simulator.run([trace]), simulator.run([trace])
    assert first.drafted > 10
    assert second.drafted < first.drafted / 4


def test_more_than_was_recorded_is_refused() -> None:
    with pytest.raises(BadInput, match="5 drafted tokens and the recorded chains have 4"):
        simulate([greedy_trace([0] * 9)], lambda costs: fixed(5), TABLE)


def test_nothing_to_replay_is_no_error() -> None:
    done = simulate([], lambda costs: fixed(5), TABLE)
    assert (done.tokens_per_second, done.tokens, done.decisions) == (0.0, 0, 0)


def test_deciding_is_timed() -> None:
    done = simulate([greedy_trace([0] * 9)], lambda costs: fixed(2), TABLE)
    assert done.decision_ns > 0 and done.decisions == done.rounds
    sure = simulate([greedy_trace([0] * 9)], lambda costs: ConfidenceController(2, tau=0.1), TABLE)
    assert sure.decisions == sure.rounds + sure.draft_passes


def test_the_traces_are_used_as_they_are() -> None:
    trace: RecordedText = greedy_trace([1, 0, 2, 0, 0])
    before = trace.text.copy()
    simulate([trace, trace], lambda costs: fixed(2), TABLE, batch=2)
    assert np.array_equal(trace.text, before)
