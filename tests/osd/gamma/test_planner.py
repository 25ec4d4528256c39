"""One batch, several controllers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from osd.gamma.base import CostModel, DraftDecision, Observation, RowByRow, Signal
from osd.gamma.factory import make_planner
from osd.gamma.planner import GammaPlanner
from storage.errors import BadSetting
from tests.support.settings import settings_of


@dataclass
class Told:
    """A row that answers what the test tells it to."""

    gamma: int
    answers: dict[float, DraftDecision]

    def next_gamma(self, batch: int) -> int:
        return self.gamma

    def keep_drafting(self, signal: float) -> DraftDecision:
        return self.answers[signal]

    def observe(self, seen: Observation) -> None:
        raise AssertionError("not asked")


class Telling(RowByRow):
    name = "telling"

    def __init__(self, signal: Signal) -> None:
        self.signal: Signal = signal

    def start(self) -> Told:
        raise AssertionError("not asked")


@dataclass
class Line:
    controller: Telling
    gamma_state: Told
    left: int = 20

    def room(self) -> int:
        return self.left

    def unread(self) -> int:
        return 0


ANSWERS = {0.1: DraftDecision.DECLINE, 0.5: DraftDecision.LAST, 0.9: DraftDecision.ON}


def test_a_route_without_a_rule_of_its_own_follows_the_usual_one() -> None:
    settings = settings_of(gamma__rule="analytic", gamma__routes={"sql": "fixed", "code": "fixed"})
    planner = make_planner(settings.gamma, CostModel())
    assert [planner.controller(route).name for route in ("sql", "chat")] == ["fixed", "analytic"]
    assert planner.controller("sql") is planner.controller("code")


def test_an_unknown_rule_for_a_route_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"gamma\.routes\.sql: there is no 'clairvoyant'"):
        make_planner(settings_of(gamma__routes={"sql": "clairvoyant"}).gamma, CostModel())


def test_each_row_is_planned_by_its_own_controller_and_cut_to_its_room() -> None:
    one, other = Telling("none"), Telling("peak")
    rows = [Line(one, Told(3, {})), Line(other, Told(5, {}), left=2), Line(one, Told(4, {}), left=-1)]
    assert GammaPlanner(one, {}).plan(rows) == [3, 2, -1]


def test_only_rows_that_still_draft_are_steered_each_by_its_own_signal() -> None:
    confident, peaked, blind = Telling("confidence"), Telling("peak"), Telling("none")
    rows = [Line(c, Told(9, ANSWERS)) for c in (confident, peaked, blind, confident, peaked)]
    lengths = [6, 6, 6, 2, 3]  # the fourth has stopped after two tokens; the fifth ends here in any case
    signals: dict[Signal, list[float]] = {"confidence": [0.5, 9, 9, 9, 9], "peak": [9, 0.1, 9, 9, 0.9]}
    read: list[Signal] = []

    def reader(signal: Signal) -> list[float]:
        read.append(signal)
        return signals[signal]

    GammaPlanner(blind, {}).should_continue(rows, lengths, 3, reader)
    assert lengths == [3, 2, 6, 2, 3]
    assert sorted(read) == ["confidence", "peak"]


class Hearing(Telling):
    reads_head = True

    def should_continue(self, rows, drafted, signals, estimates=()):  # type: ignore[no-untyped-def]
        return [
            ANSWERS[signal] if estimate > 0.5 else DraftDecision.LAST
            for signal, estimate in zip(signals, estimates, strict=True)
        ]


def test_a_rule_that_reads_a_head_is_given_what_it_says_of_its_own_rows() -> None:
    hearing, usual = Hearing("peak"), Telling("peak")
    rows = [Line(each, Told(4, ANSWERS)) for each in (hearing, usual, hearing)]
    planner, lengths, read = (
        GammaPlanner(usual, {}),
        [4, 4, 4],
        {"peak": [0.9, 0.9, 0.9], "acceptance": [0.4, 0.1, 0.8]},
    )
    planner.plan(rows)
    planner.should_continue(rows, lengths, 2, lambda signal: read[signal])
    assert lengths == [2, 4, 4]


def test_nothing_is_read_where_nobody_asks() -> None:
    blind = Telling("none")
    lengths = [4, 4]

    def reader(signal: Signal) -> Sequence[float]:
        raise AssertionError(signal)

    GammaPlanner(blind, {}).should_continue([Line(blind, Told(4, {}))] * 2, lengths, 1, reader)  # type: ignore[arg-type]
    assert lengths == [4, 4]


def test_rows_that_ask_for_one_gamma_are_planned_together() -> None:
    planner = make_planner(settings_of().gamma, CostModel())
    assert planner.fixed(3) is planner.fixed(3) is not planner.fixed(0)
    assert planner.fixed(3).plan([planner.fixed(3).start()] * 2, [9, 9], 2, []) == [3, 3]
