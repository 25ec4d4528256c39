"""Traces, and the file that keeps them."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.gamma.rounds import RecordedText, Recording, read_recording, write_recording
from storage.errors import BadBenchFile
from tests.support.traces import greedy_trace, recording, sampled_trace


def same(one: RecordedText, other: RecordedText) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(RecordedText))


def test_a_greedy_match_ends_at_the_first_rejection_whatever_comes_after() -> None:
    trace = greedy_trace([2, 0, 4])
    accepted_again = replace(trace, acceptance=np.array([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]], np.float32))
    assert accepted_again.matches(5).tolist() == trace.matches().tolist() == [2, 0, 4]


def test_coins_of_a_sampled_trace_repeat_by_seed_and_follow_the_probabilities() -> None:
    trace = replace(sampled_trace(4000, 3), acceptance=np.tile(np.array([0.5, 0.8, 0.0], np.float32), (4000, 1)))
    matches = trace.matches(1)
    assert np.array_equal(matches, trace.matches(1))
    assert not np.array_equal(matches, trace.matches(2))
    shares = np.bincount(matches, minlength=4) / 4000
    assert np.allclose(shares, [0.5, 0.1, 0.4, 0.0], atol=0.04)  # five standard errors


def test_certain_tokens_are_accepted_and_impossible_ones_are_not() -> None:
    trace = replace(sampled_trace(50, 2), acceptance=np.tile(np.array([1, 0], np.float32), (50, 1)))
    assert set(trace.matches().tolist()) == {1}


def test_a_recording_comes_back_as_it_was_written(tmp_path: Path) -> None:
    with_head = sampled_trace(5, 4)
    with_head = replace(with_head, head=with_head.acceptance / 2)
    written = recording(greedy_trace([1, 0, 2]), with_head)
    write_recording(tmp_path / "rounds.parquet", written)
    read = read_recording(tmp_path / "rounds.parquet")
    assert replace(read, traces=()) == replace(written, traces=())
    assert all(same(one, other) for one, other in zip(read.traces, written.traces, strict=True))
    assert [t.data_set for t in read.of("drawn", 1.0)] == ["drawn"]
    assert not read.of("drawn", 0.0)


def test_columns_that_came_later_may_lack(tmp_path: Path) -> None:
    bare, path = sampled_trace(5, 4), tmp_path / "rounds.parquet"
    later = {name: (bare.peak / 2).astype(np.float16).astype(np.float32) for name in ("margin", "entropy", "overlap")}
    full = replace(bare, likeliest=bare.drafted + 1, **later)
    write_recording(path, replace(recording(full), top_k=50))
    read = read_recording(path)
    assert read.top_k == 50 and same(read.traces[0], full)
    table = pq.read_table(path).drop_columns(["likeliest", *later])
    about = table.schema.metadata[b"osd.rounds"].replace(b', "top_k": 50', b"")
    pq.write_table(table.replace_schema_metadata({"osd.rounds": about}), path)
    old = read_recording(path)
    assert old.top_k == 0 and same(old.traces[0], bare)


def test_an_empty_recording_can_be_kept(tmp_path: Path) -> None:
    write_recording(tmp_path / "none.parquet", replace(recording(greedy_trace([0])), traces=()))
    assert read_recording(tmp_path / "none.parquet").traces == ()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 100])
def test_what_is_no_parquet_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rounds.parquet"
    path.write_bytes(content)
    with pytest.raises(BadBenchFile, match=r"rounds\.parquet: is not a recording"):
        read_recording(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadBenchFile, match="No such file"):
        read_recording(tmp_path / "nowhere.parquet")


def test_a_foreign_table_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(BadBenchFile, match="no recorded rounds"):
        read_recording(tmp_path / "a.parquet")


def test_another_layout_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int32())], metadata={"osd.rounds": '{"version": 99}'})
    pq.write_table(pa.table({"a": [1]}, schema=schema), tmp_path / "a.parquet")
    with pytest.raises(BadBenchFile, match="another osd"):
        read_recording(tmp_path / "a.parquet")


def test_a_flipped_byte_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rounds.parquet"
    written = recording(*(sampled_trace(30, 4, seed) for seed in range(4)))
    write_recording(path, written)
    whole = path.read_bytes()
    noticed = 0
    for place in range(40, len(whole) // 2, 311):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            read = read_recording(path)
        except BadBenchFile:
            noticed += 1
        else:  # a header's statistics
            assert all(same(one, other) for one, other in zip(read.traces, written.traces, strict=True))
    assert noticed > 5


@pytest.mark.parametrize(
    ("name", "value"),
    [("acceptance", np.full((3, 4), 1.5, np.float32)), ("peak", np.zeros((2, 4), np.float32)),
     ("confidence", np.full((3, 4), np.nan, np.float32)), ("drafted", np.zeros((3, 3), np.int32))],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    damaged: Recording = recording(replace(greedy_trace([1, 0, 2]), **{name: value}))
    write_recording(tmp_path / "r.parquet", replace(damaged, depth=4))
    with pytest.raises(BadBenchFile, match=f"{name} of trace 0"):
        read_recording(tmp_path / "r.parquet")
