"""Draft lengths that were tried out."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from osd.attached.trials import TunedBatch, batch_sizes, draft_lengths, judged, schedule_of, tune


@given(most=st.integers(1, 300))
def test_batch_sizes_double_up_to_the_most(most: int) -> None:
    sizes = batch_sizes(most)
    assert sizes[0] == 1 and sizes[-1] == most and all(b <= 2 * a for a, b in itertools.pairwise(sizes))


@given(most=st.integers(0, 40))
def test_lengths_begin_at_none_and_end_at_the_most(most: int) -> None:
    assert draft_lengths(most)[0] == 0 and draft_lengths(most)[-1] == most


@given(bests=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_the_schedule_says_of_every_batch_what_was_found_for_it(bests: list[int]) -> None:
    found = [TunedBatch(2**i, {}, {}, best) for i, best in enumerate(bests)]
    schedule = schedule_of(found)
    for size in range(1, found[-1].batch + 1):
        expected = next(one.best for one in found if one.batch >= size)
        assert [length for first, last, length in schedule if first <= size <= last] == [expected]
    assert all(a[2] != b[2] for a, b in itertools.pairwise(schedule))


def test_the_shortest_of_equals_is_chosen() -> None:
    assert judged(1, {0: [9.0, 11.0], 4: [10.0, 10.2]}).best == 0
    assert judged(1, {0: [9.0, 9.1], 2: [12.0, 12.1], 4: [12.0, 12.2]}).best == 2


def test_every_length_is_measured_as_often_and_progress_is_told() -> None:
    asked: list[tuple[int, int]] = []
    told: list[tuple[int, int]] = []

    def measure(batch: int, length: int) -> float:
        asked.append((batch, length))
        return 100.0 + 10 * length - 3 * batch * length

    found = list(tune([1, 2, 4], [0, 2, 4], measure, lambda done, turns: told.append((done, turns))))
    assert sorted(asked) == sorted((b, n) for b in (1, 2, 4) for n in (0, 2, 4) for _ in range(3))
    assert told[-1] == (27, 27) and [one.best for one in found] == [4, 4, 0]
