"""Files of prompts: a broken line is named by its number, and the others go on."""

import gzip
from pathlib import Path

import pytest

from osd.prompts import Prompt, read_prompts
from storage.errors import BadPromptFile

LINES = b"""{"prompt": "one", "id": 7, "route": "sql"}
{"prompt": "two"

{"prompt": "three", "context": "A table."}
["prompt"]
{"question": "no prompt"}
{"prompt": "caf\xe9"}
{"prompt": "last"}
"""


def test_good_lines_come_out_in_order_and_bad_ones_with_their_number(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(LINES)
    found = list(read_prompts(path))
    assert [item.text for item in found if isinstance(item, Prompt)] == ["one", "A table.\n\nthree", "last"]
    assert [item.facts["line"] for item in found if isinstance(item, BadPromptFile)] == [2, 5, 6, 7]
    assert "line 2 is not JSON" in str(found[1])
    assert "prompts.jsonl" in str(found[1])


def test_other_fields_are_kept_and_lines_counted_with_the_empty_ones(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(LINES)
    prompts = [item for item in read_prompts(path) if isinstance(item, Prompt)]
    assert prompts[0].fields == {"id": 7, "route": "sql"}
    assert prompts[1].line == 4


def test_gzip_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "one"}\n'))
    assert list(read_prompts(path)) == [Prompt("one", 1)]


CUT_SHORT = gzip.compress(b'{"prompt": "one"}\n' * 999)[:40]


@pytest.mark.parametrize("content", [None, b"not gzip at all", CUT_SHORT], ids=["missing", "not gzip", "cut short"])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadPromptFile, match="cannot be read"):
        list(read_prompts(path))
