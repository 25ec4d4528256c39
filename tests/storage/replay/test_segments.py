"""The segment format: what goes in comes out, bit for bit, and a damaged file is refused."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import BadInput, SegmentDamaged
from storage.files.places import LocalFolder
from storage.records import RequestSamples
from storage.replay import segments
from storage.replay.segment_files import SegmentFiles, is_held_out
from storage.sql.tables import SegmentRow
from tests.storage.make import assert_same, samples, with_hidden
from tests.support.samples import each_position

NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@st.composite
def requests(draw: st.DrawFn) -> RequestSamples:
    """Any samples at all: no positions, no log-probability or one, any bits in the arrays, infinities included."""
    m, k, n = draw(st.integers(0, 40)), draw(st.integers(0, 9)), draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def array(dtype: type[np.generic], *shape: int) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        values = np.frombuffer(rng.bytes(size), dtype).reshape(shape)
        return np.nan_to_num(values, nan=1.5, posinf=np.inf, neginf=-np.inf) if dtype is np.float16 else values

    return RequestSamples(
        draw(NAMES), draw(NAMES), draw(NAMES), draw(NAMES), draw(st.floats(0, 4e9)), draw(st.integers(0, n)),
        array(np.int32, n), array(np.int32, m), array(np.uint8, m), array(np.int32, m),
        array(np.int32, m, k), array(np.float16, m, k), array(np.float32, m),
        None if m and draw(st.booleans()) else array(np.float16, m),
        hidden_states=array(np.float16, m, draw(st.integers(1, 5))) if m and draw(st.booleans()) else None,
    )  # fmt: skip


@given(st.lists(requests(), min_size=1, max_size=5))
@settings(max_examples=60)
def test_what_goes_in_comes_out(tmp_path_factory: pytest.TempPathFactory, batch: list[RequestSamples]) -> None:
    path = tmp_path_factory.mktemp("segment") / "a.parquet"
    path.write_bytes(segments.encode(batch))
    read = segments.decode(path)
    assert len(read) == len(batch)
    for left, right in zip(batch, read, strict=True):
        assert_same(left, right)


def test_arrays_read_can_be_written_to_and_do_not_alias_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(segments.encode([samples(0), samples(1)]))
    first, second = segments.decode(path)
    first.topk_logprobs[:] = 0
    assert_same(second, samples(1, created_at=second.created_at))


def test_other_tools_see_plain_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(segments.encode([samples(0), samples(1)]))
    table = pq.read_table(path)
    assert table["request_id"].to_pylist() == ["r0", "r1"]
    assert table["k"].to_pylist() == [4, 4]
    np.testing.assert_array_equal(table["topk_ids"][1].as_py(), samples(1).topk_ids.ravel())
    assert {pq.ParquetFile(path).metadata.row_group(0).column(i).compression for i in range(21)} == {"ZSTD"}


def test_hidden_states_are_empty_where_they_were_not_kept() -> None:
    some = pq.read_table(BytesIO(segments.encode([samples(0), with_hidden(1)])))
    assert [len(row) for row in some["hidden_states"].to_pylist()] == [0, 24]


@pytest.mark.parametrize("states", [np.zeros((2, 4), np.float16), np.zeros(3, np.float16)])
def test_hidden_states_of_other_positions_are_refused(states: Any) -> None:
    with pytest.raises(BadInput, match="hidden_states"):
        segments.encode([samples(0, m=3, hidden_states=states)])


@pytest.mark.parametrize("name", ["kinds", "drafted", "topk_ids", "topk_logprobs", "outside", "acceptance"])
def test_shapes_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="shapes that do not fit"):
        segments.encode([samples(0, **{name: getattr(samples(0), name)[:-1]})])


@pytest.mark.parametrize("lacking", [["acceptance"], list(segments.LATER)])
def test_segments_that_lack_columns_are_read(tmp_path: Path, lacking: list[str]) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(segments.table([samples(0), samples(1)]).drop(lacking), path)
    first, second = segments.decode(path)
    assert_same(first, samples(0, acceptance=None, created_at=first.created_at))
    assert second.acceptance is None and [sample.acceptance for sample in each_position(second)] == [None] * 3


@pytest.mark.parametrize("change", [lambda t: t.drop(["outside"]), lambda t: t.append_column("more", t["k"])])
def test_other_columns_are_no_segment(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(change(segments.table([samples(0)])), path)
    with pytest.raises(SegmentDamaged, match="columns are not a segment's"):
        SegmentFiles(LocalFolder(tmp_path)).read("a", "a.parquet")


def test_every_flipped_byte_of_the_data_is_noticed(tmp_path: Path) -> None:
    """Checksums cover every page; a flip in the footer or a page header fails to parse or to match."""
    path = tmp_path / "a.parquet"
    whole = bytes(segments.encode([samples(0, m=50)]))
    path.write_bytes(whole)
    expected = segments.decode(path)[0]
    unnoticed = 0
    for place in range(4, len(whole) - 4, 37):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        try:
            read = SegmentFiles(LocalFolder(tmp_path)).read("a", "a.parquet")
        except SegmentDamaged as error:
            assert error.facts["segment"] == "a"
        else:
            unnoticed += 1  # in statistics or names that reading does not use
            assert_same(read[0], expected)
    assert unnoticed < len(whole) // 37 // 2


def test_every_flipped_bit_of_the_whole_file_is_noticed_by_its_digest(tmp_path: Path) -> None:
    """Also in headers, where a flip can leave other records that read without a complaint."""
    files, rows = SegmentFiles(LocalFolder(tmp_path)), []
    files.write([samples(0, m=1), samples(1, m=2)], lambda new: rows.append(SegmentRow(**new.segment)))
    file = tmp_path / rows[0].path
    whole = file.read_bytes()
    assert [each.request_id for each in files.read_whole(rows[0])] == ["r0", "r1"]
    for at in range(0, len(whole), 3):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(SegmentDamaged, match="not those that were written"):
            files.read_whole(rows[0])


def test_segments_of_before_the_digest_are_read(tmp_path: Path) -> None:
    files, rows = SegmentFiles(LocalFolder(tmp_path)), []
    files.write([samples(0)], lambda new: rows.append(SegmentRow(**new.segment | {"digest": None})))
    assert len(files.read_whole(rows[0])) == 1


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_cut_off_file_is_damaged(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a.parquet").write_bytes(bytes(segments.encode([samples(0)]))[:cut])
    with pytest.raises(SegmentDamaged, match=r"purge --segment a"):
        SegmentFiles(LocalFolder(tmp_path)).read("a", "a.parquet")


def test_equal_prompts_fall_on_one_side() -> None:
    one = samples(1)
    other = samples(2, tokens=np.concatenate([one.tokens[: one.prompt_len], np.zeros(9, np.int32)]))
    assert is_held_out(one, 0.5) == is_held_out(other, 0.5)


def test_the_share_held_out_is_as_asked() -> None:
    """4,000 prompts at 0.1: outside 320..480 with odds below 1e-4 were the hash unfair; the prompts are fixed."""
    held_out = sum(is_held_out(samples(number), 0.1) for number in range(4000))
    assert 320 <= held_out <= 480
    assert not any(is_held_out(samples(number), 0.0) for number in range(50))
