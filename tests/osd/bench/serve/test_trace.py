"""Traces: read, cut to what rows hold, played faster or slower."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from osd.bench.serve.requests import read_trace
from storage.errors import BadPromptFile


def written(path: Path, rows: list[tuple[float, int, int]]) -> Path:
    """A trace file."""
    names = ("t_s", "context_tokens", "generated_tokens")
    path.write_bytes(
        gzip.compress("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows).encode())
    )
    return path


def test_lengths_are_cut_and_the_rhythm_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl.gz", [(5.0, 3, 4), (6.0, 500, 90), (9.0, 1, 0), (99.0, 1, 1)])
    trace = read_trace(path, [7, 8, 9, 10], limit=64, longest=16, count=3)
    assert trace.name == "t" and [job.tokens for job in trace.jobs] == [4, 16, 2]
    assert [len(job.prompt) for job in trace.jobs] == [3, 48, 1] and trace.jobs[1].prompt[:3] == (10, 7, 8)
    assert [arrival.at for arrival in trace.arrivals(1.5, 60.0)] == [0.0, 0.5, 2.0]
    assert [arrival.at for arrival in trace.arrivals(1.5, 1.0)] == [0.0, 0.5]


@pytest.mark.parametrize("text", ["{", '{"t_s": 1}', "", '{"t_s": 1, "context_tokens": 1, "generated_tokens": 1}'])
def test_what_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(BadPromptFile):
        read_trace(path, [1], limit=64, longest=16)
