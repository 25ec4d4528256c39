"""Progressive validation: outcomes are told at their own time, not before and not after."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from router.base import Decision
from router.classifying import ClassifierRouter
from router.validation import Arrival, accuracy, validate
from storage.errors import UnknownRoute
from storage.records import Outcome, Request, Route
from tests.router.words import TOPICS
from tests.storage.make import outcome


class Counting:
    """Routes to the number of outcomes that it was told so far."""

    reads_text = False

    def __init__(self) -> None:
        self.told: list[str] = []

    def route(self, request: Request) -> Decision:
        return Decision(Route(str(len(self.told))))

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        assert outcomes[0].request_id == request.id
        self.told.append(f"{request.id}@{decision.name}")


def arrival(name: str, at: float, done_at: float, truth: str | None = None) -> Arrival:
    return Arrival(Request((1,), id=name), at, done_at, (outcome(request_id=name),), truth)


def test_a_prediction_knows_what_had_ended_and_nothing_else() -> None:
    router = Counting()
    stream = [arrival("c", 5, 6), arrival("a", 0, 10), arrival("b", 1, 5), arrival("d", 11, 12), arrival("e", 12, 90)]
    verdicts = list(validate(router, stream))
    told_before = {verdict.arrival.request.id: verdict.decision.name for verdict in verdicts}
    assert told_before == {"a": "0", "b": "0", "c": "1", "d": "3", "e": "4"}
    assert router.told == ["b@0", "c@1", "a@0", "d@3", "e@4"]


def test_an_outcome_before_its_request_is_told_after_it() -> None:
    router = Counting()
    assert [verdict.decision.name for verdict in validate(router, [arrival("a", 5, 1), arrival("b", 5, 5)])] == [
        "0",
        "1",
    ]


def test_accuracy_counts_what_is_known() -> None:
    routes = [Route(), Route("sql", matches={"topic": ["sql"]})]
    texts = {"SELECT 1": "sql", "hello": "default", "perhaps": "sql", "SELECT 2": None}
    stream = [Arrival(Request((1,), text=text), n, n + 1, (), truth) for n, (text, truth) in enumerate(texts.items())]
    verdicts = list(validate(ClassifierRouter(routes, topics=TOPICS), stream))
    assert [verdict.right for verdict in verdicts] == [True, True, False, None]
    assert accuracy(verdicts) == pytest.approx(2 / 3)
    assert accuracy(verdicts[3:]) is None


def test_what_routing_raises_comes_through() -> None:
    stream = [Arrival(Request((1,), route="nowhere"), 0, 1)]
    with pytest.raises(UnknownRoute):
        list(validate(ClassifierRouter([Route()]), stream))
