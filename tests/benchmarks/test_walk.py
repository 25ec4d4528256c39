"""The walk from a request to its tokens: which lines count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.walk import ASKED, ENGINE, HTTP, IDLE, STEP, passed, rows_of, total

LOG = [
    (IDLE, 1, "MainThread", "osd/server/poll.py", 1), (ASKED, 1, "MainThread", "osd/server/poll.py", 1),
    (ASKED, 1, "MainThread", "osd/server/api.py", 7), (ASKED, 1, "MainThread", "osd/server/api.py", 8),
    (ASKED, 2, "decode", STEP, 3), (ASKED, 2, "decode", "storage/records.py", 9),
    (ASKED, 2, "writer", "storage/replay/samples.py", 5), (ASKED, 1, "decode", "osd/server/log.py", 4),
]  # fmt: skip
"""Process 1 answers HTTP and polls, process 2 decodes and writes; a thread of process 1 is called as the one that
decodes."""


def test_lines_count_of_threads_that_serve_and_files_that_rest_when_nothing_is_asked(tmp_path: Path) -> None:
    log = tmp_path / "lines"
    log.write_text("".join(" ".join(map(str, line)) + "\n" for line in LOG))
    for name in {str(line[3]) for line in LOG}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("line\n" * 10)
    rows = rows_of(passed(log), tmp_path)
    assert [(row["part"], row["file"], row["lines"], row["run"]) for row in rows] == [
        (HTTP, "osd/server/api.py", 10, 2), (ENGINE, STEP, 10, 1), (ENGINE, "storage/records.py", 10, 1),
    ]  # fmt: skip
    assert total(rows) == {"files": 3, "lines": 30, "run": 4}


@pytest.mark.long
def test_a_request_passes_http_and_engine(bench) -> None:
    done = bench("walk", "--max-tokens", 8, "--json")
    assert done.exit_code == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert STEP in {row["file"] for row in figures["files"]}
    assert figures["totals"][HTTP]["files"] > 5 and figures["totals"][ENGINE]["run"] > 100
