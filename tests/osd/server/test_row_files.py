"""Whatever holds rows, they are read alike; a file that is not whole costs its own end."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from osd.server.http.conversations import RowReader
from osd.server.http.row_files import read_rows
from storage.errors import BadPromptFile
from storage.replay.exports import is_table, write_export
from tests.storage.make import samples
from tests.support import chat_templates as templates

TURNS = [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "só."}]
ROWS: list[dict[str, Any]] = [{"id": n, "conversations": TURNS} for n in range(600)]
LINES = "\n".join(map(json.dumps, ROWS)).encode()


def read(path: Path) -> list[dict[str, Any] | BadPromptFile]:
    return list(read_rows(path, lambda _, number, line: [{"number": number, **json.loads(line)}]))


def as_stream(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def zstandard(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


WRITERS: dict[str, Callable[[Path], Any]] = {
    "a.jsonl": lambda path: path.write_bytes(LINES), "a.ndjson": lambda path: path.write_bytes(LINES),
    "a.json": lambda path: path.write_bytes(LINES), "b.json": lambda path: path.write_text(json.dumps(ROWS, indent=1)),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "a.jsonl.bz2": lambda path: path.write_bytes(bz2.compress(LINES)),
    "a.jsonl.xz": lambda path: path.write_bytes(lzma.compress(LINES)),
    "a.jsonl.zst": lambda path: path.write_bytes(zstandard(LINES)),
    "a.json.gz": lambda path: path.write_bytes(gzip.compress(json.dumps(ROWS).encode())),
    "a.parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path),
    "a.arrow": lambda path: as_stream(path, pa.Table.from_pylist(ROWS)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_every_file_has_the_same_rows(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    assert read(tmp_path / name) == [{"number": number, **row} for number, row in enumerate(ROWS, start=1)]


def test_a_folder_as_datasets_saves_it(tmp_path: Path) -> None:
    """Two splits of two files; what stands beside the rows is none of them."""
    for split in ("train", "test"):
        folder = tmp_path / split
        folder.mkdir()
        for name in ("data-00000-of-00002.arrow", "data-00001-of-00002.arrow", "cache-1f.arrow"):
            as_stream(folder / name, pa.Table.from_pylist(ROWS[:3]))
        (folder / "state.json").write_text("{}"), (folder / "dataset_info.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "a.json").write_text("{}")
    assert [one["number"] for one in read(tmp_path) if isinstance(one, dict)] == [1, 2, 3] * 4
    assert len(read(tmp_path / "train")) == 6
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadPromptFile, match="no file in it has rows"):
        read(tmp_path / "empty")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.bz2", "a.jsonl.xz", "a.jsonl.zst", "a.parquet", "a.arrow"])
def test_a_file_that_is_cut_off_is_named_behind_its_rows(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) * 2 // 3])
    (tmp_path / "z.jsonl").write_bytes(LINES)
    *found, last = read(tmp_path / name)
    assert isinstance(last, BadPromptFile) and f"cannot be read after line {len(found)}" in str(last)
    assert len(read(tmp_path)) == len(found) + 1 + len(ROWS), "the others go on"


def test_exports_of_osd_are_told_from_tables_of_others(tmp_path: Path) -> None:
    WRITERS["a.parquet"](tmp_path / "a.parquet")
    write_export(tmp_path / "b.parquet", [[samples(1)]], overwrite=False)
    unmarked = pq.read_table(tmp_path / "b.parquet").replace_schema_metadata(None)
    pq.write_table(unmarked, tmp_path / "c.parquet")
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    assert [is_table(tmp_path / f"{name}.parquet") for name in "abcd"] == [True, False, False, False]


@pytest.mark.long
def test_ten_thousand_rows_of_which_a_hundred_are_bad(tmp_path: Path) -> None:
    tokenizer = templates.tokenizer()
    bad = [
        {"conversations": TURNS[:1]},
        {"conversations": 5},
        {"messages": [{"role": "user"}]},
        {"prompt": ["a", 5]},
        [],
    ]
    rows = [bad[n // 100 % 5] if n % 100 == 7 else {**ROWS[0], "id": n} for n in range(10_000)]
    (tmp_path / "all.json").write_text(json.dumps(rows))
    found = list(read_rows(tmp_path / "all.json", RowReader(tokenizer, {1}, len(tokenizer), 512)))
    lines = [one.facts["line"] for one in found if isinstance(one, BadPromptFile)]
    assert lines == list(range(8, 10_001, 100)) and len(found) == 10_000
