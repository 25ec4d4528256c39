"""The outbox of the thread that decodes: what waits for a tick, and what does not."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from osd.server.errors import Stopped
from osd.server.outbox import Outbox
from osd.server.piece import Piece, joined
from osd.server.scores import Scores


@dataclass(eq=False)
class Somebody:
    name: str
    pause: float = 10.0
    begun: bool = False


def test_the_first_goes_at_once_and_the_next_wait_for_each_other() -> None:
    outbox: Outbox[Somebody, int] = Outbox()
    one = Somebody("one")
    outbox.put(one, 1, 3.0, urgent=False)
    assert outbox.take(3.0) == [(one, [1])]
    for piece, now in ((2, 4.0), (3, 9.0)):
        outbox.put(one, piece, now, urgent=False)
        assert outbox.take(now) == []
    assert outbox.take(10.0) == [(one, [2, 3])], "the tick"
    assert outbox.take(20.0) == [] and len(outbox) == 0


def test_the_last_takes_along_what_waits() -> None:
    outbox: Outbox[Somebody, int] = Outbox()
    one, other = Somebody("one", begun=True), Somebody("other", begun=True)
    outbox.put(one, 1, 3.0, urgent=False)
    outbox.put(other, 1, 3.0, urgent=False)
    outbox.put(one, 2, 4.0, urgent=True)
    assert outbox.take(4.0) == [(one, [1, 2])]
    assert len(outbox) == 1


def test_all_of_one_pause_are_told_together_and_others_when_it_is_their_time() -> None:
    outbox: Outbox[Somebody, int] = Outbox()
    streams = [Somebody(str(i), begun=True) for i in range(3)]
    whole = Somebody("whole", pause=1000.0, begun=True)
    for now, somebody in enumerate([*streams, whole]):
        outbox.put(somebody, now, float(now), urgent=False)
    assert outbox.take(9.9) == []
    assert [somebody for somebody, _ in outbox.take(10.0)] == streams
    assert outbox.take(1000.0) == [(whole, [3])]


@pytest.mark.parametrize(("told", "pause"), [(1, 0.02), (4, 0.02), (8, 0.04), (16, 0.08), (20, 0.1), (500, 0.1)])
def test_where_many_are_told_ticks_are_further_apart(told: int, pause: float) -> None:
    outbox: Outbox[Somebody, int] = Outbox()
    stream, whole = Somebody("stream", 0.02, begun=True), Somebody("whole", 1.0, begun=True)
    every_round = Somebody("every round", 0.0, begun=True)
    for one in (stream, whole, every_round):
        outbox.put(one, 1, 0.001, urgent=False, told=told)
    assert outbox.take(0.001) == [(every_round, [1])]
    assert outbox.take(pause - 0.001) == [] and outbox.take(pause) == [(stream, [1])]
    assert outbox.take(1.0) == [(whole, [1])]


@pytest.mark.parametrize("seed", range(10))
def test_everything_goes_out_once_in_order_and_no_later_than_a_pause_after_it_came(seed: int) -> None:
    chance = random.Random(seed)
    outbox: Outbox[Somebody, tuple[int, float]] = Outbox()
    them = [Somebody(str(i), chance.choice([0.0, 0.5, 3.0])) for i in range(4)]
    put: dict[Somebody, list[int]] = {somebody: [] for somebody in them}
    got: dict[Somebody, list[int]] = {somebody: [] for somebody in them}
    now = 0.0
    for number in range(400):
        now += chance.random() / 10
        somebody = chance.choice(them)
        put[somebody].append(number)
        outbox.put(somebody, (number, now), now, urgent=chance.random() < 0.05)
        for one, pieces in outbox.take(now):
            got[one] += [number for number, _ in pieces]
            assert all(now - came <= one.pause + 0.1 for _, came in pieces)
    for one, pieces in outbox.take(now + 3.0):
        got[one] += [number for number, _ in pieces]
    assert got == put and len(outbox) == 0


def test_pieces_are_joined_unless_each_has_something_of_its_own_to_say() -> None:
    one, two = Piece((1, 2), None, "v1", "sql"), Piece((3,), None, "v2", "sql")
    assert joined([one]) == [one]
    assert joined([one, two, Piece()]) == [Piece((1, 2, 3), None, "v2", "sql")], "the last names nobody"
    scored = Piece((4,), Scores([0.0], [[4]], [[0.0]]), "v2", "sql")
    assert joined([one, scored]) == [one, scored]
    failed = Piece(error=Stopped())
    assert joined([one, failed]) == [one, failed], "what came before an error is still shown"
