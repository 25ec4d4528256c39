"""Branches in segments: written and read bit for bit, absent where there are none, refused where they do not fit."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from storage.branches import Branches, joined
from storage.errors import BadInput
from storage.records import RequestSamples
from storage.replay import segments
from storage.replay.exports import write_export
from tests.storage.make import assert_same, samples


def branches(number: int, lengths: tuple[int, ...] = (2, 3), k: int = 4) -> Branches:
    """Branches from position 5 on."""
    rng, n = np.random.default_rng(number), sum(lengths)
    return Branches(
        np.arange(5, 5 + len(lengths), dtype=np.int32), np.array(lengths, np.int32),
        rng.integers(0, 50_000, n).astype(np.int32), rng.integers(0, 50_000, (n, k)).astype(np.int32),
        -np.sort(rng.exponential(4, (n, k))).astype(np.float16), rng.random(n).astype(np.float32),
    )  # fmt: skip


def both() -> list[RequestSamples]:
    return [
        samples(0, created_at=1.0),
        replace(samples(1, created_at=2.0), branches=branches(1)),
        replace(samples(2, created_at=3.0), branches=branches(2, (1,))),
    ]


def require_equal(found: list[RequestSamples], expected: list[RequestSamples]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)
        assert (one.branches is None) == (other.branches is None)
        for name in Branches.__slots__ if one.branches and other.branches else ():
            left, right = getattr(one.branches, name), getattr(other.branches, name)
            assert (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes()), name


def test_a_segment_holds_branches_of_some_of_its_requests() -> None:
    require_equal(segments.decode(BytesIO(segments.encode(both()))), both())


@pytest.mark.parametrize("first", [0, 1])
def test_an_export_has_them(tmp_path: Path, first: int) -> None:
    batches = [[each] for each in both()[:1] * first + both()]
    done = write_export(tmp_path / "all.parquet", batches, overwrite=False)
    assert done.requests == 3 + first
    found = [each for group in segments.decode_groups(tmp_path / "all.parquet") for each in group]
    require_equal(found, [each for batch in batches for each in batch])


def test_a_share_of_the_bytes_counts_them() -> None:
    shares = segments.shares([samples(1), replace(samples(1), branches=branches(1, (40,)))])
    assert shares[1] > 3 * shares[0] and shares.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"begins": np.array([5, 99], np.int32)}, "begins nowhere"),
        ({"begins": np.array([0, 5], np.int32)}, "begins nowhere"),
        ({"lengths": np.array([2, 2], np.int32)}, "begins nowhere"),
        ({"outside": np.zeros(4, np.float32)}, "do not fit"),
        ({"topk_ids": np.zeros((5, 3), np.int32)}, "do not fit"),
    ],
)
def test_branches_that_do_not_fit_are_refused(change: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(BadInput, match=f"r1 cannot be kept: .*{said}"):
        segments.encode([replace(samples(1), branches=replace(branches(1), **change))])


def test_the_parts_of_branches() -> None:
    whole = branches(1, (2, 3))
    assert whole.branch_numbers().tolist() == [0, 0, 1, 1, 1] and whole.within().tolist() == [0, 1, 0, 1, 2]
    second = whole.where(np.array([False, True]))
    assert second is not None and second.tokens.tolist() == whole.tokens[2:].tolist()
    assert whole.where(np.array([False, False])) is None and joined([]) is None
    first = whole.where(np.array([True, False]))
    again = joined([each for each in (first, second) if each])
    assert again is not None and again.topk_ids.tolist() == whole.topk_ids.tolist()
    narrow = whole.cut(2)
    mass = np.exp(whole.topk_logprobs[:, 2:].astype(np.float32)).sum(1)
    assert narrow.topk_ids.shape == (5, 2) and np.allclose(narrow.outside, (whole.outside + mass).clip(0, 1))
