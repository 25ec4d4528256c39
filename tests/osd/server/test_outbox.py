"""The outbox of the thread that decodes: what waits for a tick, and what does not; what is told at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from osd.logits import Scores
from osd.sequence import Completion, SequenceState
from osd.server.core.messages import EngineJob, JobOutput
from osd.server.core.queues import Outbox
from osd.server.errors import ServerStopped
from router.base import Decision
from storage.records import Request, Round, Route


@dataclass(eq=False)
class Somebody:
    name: str
    pause: float = 10.0
    begun: bool = False


def test_the_first_goes_at_once_and_the_next_wait_for_each_other() -> None:
    outbox, one = Outbox(), Somebody("one")
    outbox.put(one, 3.0)
    assert outbox.take(3.0) == [one]
    for now in (4.0, 9.0):
        outbox.put(one, now)
        assert outbox.take(now) == []
    assert outbox.take(10.0) == [one], "the tick"
    assert outbox.take(20.0) == [] and len(outbox) == 0


def test_the_last_does_not_wait() -> None:
    outbox, one, other = Outbox(), Somebody("one", begun=True), Somebody("other", begun=True)
    outbox.put(one, 3.0)
    outbox.put(other, 3.0)
    outbox.put(one, 4.0, urgent=True)
    assert outbox.take(4.0) == [one]
    assert len(outbox) == 1


def test_all_of_one_pause_are_told_together_and_others_when_it_is_their_time() -> None:
    outbox = Outbox()
    streams = [Somebody(str(i), begun=True) for i in range(3)]
    whole = Somebody("whole", pause=1000.0, begun=True)
    for now, somebody in enumerate([*streams, whole]):
        outbox.put(somebody, float(now))
    assert outbox.take(9.9) == []
    assert outbox.take(10.0) == streams
    assert outbox.take(1000.0) == [whole]


@pytest.mark.parametrize(("told", "pause"), [(1, 0.02), (4, 0.02), (8, 0.04), (16, 0.08), (20, 0.1), (500, 0.1)])
def test_where_many_are_told_ticks_are_further_apart(told: int, pause: float) -> None:
    outbox = Outbox()
    stream, whole = Somebody("stream", 0.02, begun=True), Somebody("whole", 1.0, begun=True)
    every_round = Somebody("every round", 0.0, begun=True)
    for one in (stream, whole, every_round):
        outbox.put(one, 0.001, receivers=told)
    assert outbox.take(0.001) == [every_round]
    assert outbox.take(pause - 0.001) == [] and outbox.take(pause) == [stream]
    assert outbox.take(1.0) == [whole]


@pytest.mark.parametrize("seed", range(10))
def test_everybody_is_told_no_later_than_a_pause_after_something_came(seed: int) -> None:
    chance, outbox, now = random.Random(seed), Outbox(), 0.0
    them = [Somebody(str(i), chance.choice([0.0, 0.5, 3.0])) for i in range(4)]
    since: dict[Somebody, float] = {}
    for _ in range(400):
        now += chance.random() / 10
        somebody = chance.choice(them)
        since.setdefault(somebody, now)
        outbox.put(somebody, now, urgent=chance.random() < 0.05)
        for one in outbox.take(now):
            assert now - since.pop(one) <= one.pause + 0.1
        assert len(outbox) == len(since)
    assert set(outbox.take(now + 3.0)) == set(since)


REQUEST = Request((3,), max_new_tokens=9)
ROUND = Round(2, 2, 1, 2, 0.0, 1.0, "v1")
DONE = Completion(REQUEST, "sql", (1, 2, 3), None, "length", (ROUND,), (), 0.1)


def served(**more: Any) -> EngineJob:
    """One that is decoded."""
    return EngineJob(REQUEST, row=SequenceState(REQUEST, REQUEST, Decision(Route("sql")), 99), **more)


def bring(job: EngineJob, tokens: Sequence[int], version: str = "v1") -> None:
    """What a round does."""
    assert job.row
    job.row.tokens += tokens
    job.row.rounds.append(Round(0, 0, 0, len(tokens), 0.0, 1.0, version))


def test_what_rounds_brought_is_told_as_one_piece() -> None:
    job = served()
    bring(job, (1, 2))
    bring(job, (3,), "v2")
    job.done = DONE
    assert job.take() == [JobOutput((1, 2, 3), None, "v2", "sql", "length", ((2, 1),))]


def test_what_was_told_is_not_told_again() -> None:
    job = served()
    bring(job, (1, 2))
    assert job.take() == [JobOutput((1, 2), None, "v1", "sql")] and job.take() == []
    bring(job, (3,), "v2")
    assert job.take() == [JobOutput((3,), None, "v2", "sql")]


def test_log_probabilities_of_several_rounds_stay_beside_their_tokens() -> None:
    job = served(top=1)
    bring(job, (1,))
    job.score(Scores([-1.0], [[1]], [[-1.0]], [1]))
    bring(job, (2, 3))
    job.score(Scores([-2.0, -3.0], [[2], [3]], [[-2.0], [-3.0]], [2, 1]))
    scores = Scores([-1.0, -2.0, -3.0], [[1], [2], [3]], [[-1.0], [-2.0], [-3.0]], [1, 2, 1])
    assert job.take() == [JobOutput((1, 2, 3), scores, "v1", "sql")]
    bring(job, (4,))
    job.score(Scores([-4.0], [[4]], [[-4.0]], [1]))
    assert job.take() == [JobOutput((4,), Scores([-4.0], [[4]], [[-4.0]], [1]), "v1", "sql")]


def test_what_came_before_an_error_is_a_piece_of_its_own() -> None:
    job = served()
    bring(job, (1, 2))
    job.why, job.done = ServerStopped(), replace(DONE, finish_reason="cancelled")
    assert job.take() == [JobOutput((1, 2), None, "v1", "sql"), JobOutput(error=job.why)]
    never = EngineJob(REQUEST, why=ServerStopped())
    assert never.take() == [JobOutput(error=never.why)]
