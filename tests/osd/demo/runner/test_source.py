"""Segments out of files: what is drawn, and what is said of lines that cannot be used."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from osd.demo import TARGET
from osd.demo.runner.source import demo_segments, file_segments, fitting
from storage.errors import BadPromptFile, ModelNotLoaded


def write(path: Path, count: int = 30) -> Path:
    lines = [json.dumps({"prompt": f"{path.name} {i}"}) for i in range(count)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()) if path.suffix == ".gz" else "\n".join(lines).encode())
    return path


def test_a_segment_a_file_drawn_by_seed(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.jsonl"), write(tmp_path / "b.jsonl.gz")]
    segments, left_out = file_segments(paths, 12, seed=1)
    assert not left_out
    assert [(s.name, len(s), len(set(s.prompts))) for s in segments] == [("a", 12, 12), ("b", 12, 12)]
    assert file_segments(paths, 12, seed=1)[0] == segments != file_segments(paths, 12, seed=2)[0]


def test_in_order_takes_the_first(tmp_path: Path) -> None:
    (segment,), _ = file_segments([write(tmp_path / "a.jsonl")], 2, seed=None)
    assert segment.prompts == ("a.jsonl 0", "a.jsonl 1")


def test_a_short_file_gives_what_it_has(tmp_path: Path) -> None:
    (segment,), _ = file_segments([write(tmp_path / "a.jsonl", 3)], 400)
    assert len(segment) == 3


def test_a_broken_line_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"prompt": "one"}\n{"prompt": \n{"question": "two"}\n{"prompt": "three", "context": "given"}\n')
    (segment,), left_out = file_segments([path], 10, seed=None)
    assert segment.prompts == ("one", "given\n\nthree")
    assert ["line 2" in left_out[0], "line 3" in left_out[1], str(path) in left_out[0]] == [True, True, True]


def test_a_file_without_any_prompt_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("not json\n")
    with pytest.raises(BadPromptFile, match="no prompt"):
        file_segments([path], 10)


def test_a_prompt_that_is_too_long_gives_way_to_the_next(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", 12)
    fits = fitting(str(TARGET), max_length=34, max_new_tokens=4)
    long = json.dumps({"prompt": "very " * 50})
    path.write_text(long + "\n" + path.read_text())
    (segment,), left_out = file_segments([path], 3, seed=None, fits=fits)
    assert segment.prompts == ("a.jsonl 0", "a.jsonl 1", "a.jsonl 2")
    assert "1 prompts are too long" in left_out[0]


def test_a_target_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotLoaded, match="nowhere"):
        fitting(str(tmp_path / "nowhere"), 100, 10)


def test_two_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    segments, _ = file_segments([write(tmp_path / "a.jsonl"), write(tmp_path / "x" / "a.jsonl")], 1)
    assert [segment.name for segment in segments] == ["a", "a-2"]


def test_the_demo_has_four_domains_one_after_another() -> None:
    assert [(s.name, len(s)) for s in demo_segments(5)] == [
        ("sql", 5),
        ("arithmetic", 5),
        ("python", 5),
        ("finnish", 5),
    ]
