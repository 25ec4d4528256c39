"""Acceptance, moving averages and recovery on streams made by hand."""

from __future__ import annotations

import pytest

from osd.demo.runner.measure import (
    alpha,
    counted_alpha,
    moving,
    recovered_after,
    rejections_gone,
    settled_after,
    tokens_per_second,
)
from tests.osd.demo.runner.served import served


def test_alpha_weighs_positions_and_not_requests() -> None:
    stream = [served(0, 1, of=1), served(1, 0, of=99, frozen=99)]
    assert alpha(stream, "online") == pytest.approx(0.01)
    assert alpha(stream, "frozen") == pytest.approx(0.99)
    assert alpha([], "online") is None


def test_counted_alpha_leaves_out_what_nobody_drafted() -> None:
    stream = [served(0, 0, accepted=8, rejections=0), served(1, 0, accepted=1, rejections=3)]
    assert counted_alpha(stream) == pytest.approx(9 / 12)
    assert counted_alpha([served(0, 0, accepted=0, rejections=0)]) is None


def test_the_offline_draft_must_have_read_the_text() -> None:
    with pytest.raises(ValueError, match="request 3"):
        alpha([served(3, 1)], "offline")
    assert alpha([served(3, 1, offline_hits=4)], "offline") == pytest.approx(0.4)


def test_moving_starts_with_what_there_is_and_then_forgets() -> None:
    stream = [served(i, hits) for i, hits in enumerate([0, 10, 10, 2])]
    assert moving(stream, "online", window=2) == pytest.approx([0.0, 0.5, 1.0, 0.6])
    assert moving([], "online") == []


@pytest.mark.parametrize(
    ("curve", "after"),
    [
        ([], None),
        ([0.7], 0),
        ([0.8, 0.8, 0.8], 0),
        ([0.1, 0.3, 0.71, 0.73, 0.79, 0.8], 3),  # 0.72 is nine tenths of 0.8
        ([0.1, 0.8, 0.8, 0.71, 0.8, 0.8], 4),  # a visit does not count: it fell below again
        ([0.1, 0.2, 0.3], 2),
        ([0.0, 0.0], 0),
    ],
)
def test_settled_when_it_never_falls_below_nine_tenths_of_the_end_again(curve: list[float], after: int | None) -> None:
    assert settled_after(curve) == after


@pytest.mark.parametrize(
    ("curve", "after"),
    [
        ([], None),
        ([0.7], 1),
        ([0.8, 0.8, 0.8], 2),
        (
            [0.9, 0.1, 0.71, 0.73, 0.79, 0.8],
            4,
        ),  # 0.72 is nine tenths of 0.8; an average over one request does not count
        ([0.1, 0.8, 0.71, 0.8], 2),
        ([0.1, 0.2, 0.3], 3),
    ],
)
def test_recovered_at_the_first_time_at_nine_tenths_of_the_end(curve: list[float], after: int | None) -> None:
    assert recovered_after(curve, least=2) == after


def test_rejections_gone() -> None:
    assert rejections_gone(0.4, 0.7) == pytest.approx(0.5)
    assert rejections_gone(0.4, 0.2) == pytest.approx(-1 / 3)
    assert rejections_gone(1.0, 1.0) is None


def test_tokens_per_second_counts_time_spent_decoding() -> None:
    assert tokens_per_second([served(0, 0, of=30), served(1, 0, of=10)]) == pytest.approx(40.0)
    assert tokens_per_second([]) is None


def test_where_a_table_drafts_too_the_positions_that_were_judged_count() -> None:
    some = [served(0, 6, of=10, judged=8, frozen=3), served(1, 1, of=10, judged=2, frozen=1)]
    assert alpha(some, "online") == pytest.approx(7 / 10)
    assert alpha(some, "frozen") == pytest.approx(4 / 20)
    assert moving(some, "online", window=1) == pytest.approx([6 / 8, 1 / 2])
