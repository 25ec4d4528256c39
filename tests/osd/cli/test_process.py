"""What only a process shows: signals, a closed pipe, and the worker that takes this process's place."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage.runs import ClaimTerms
from tests.osd.cli.conftest import samples
from tests.support.launch import Process

ROOT = Path(__file__).parents[3]
PROMPTS = '{"prompt": "Name a planet."}\n' * 4000


def start(tmp_path: Path, *arguments: str, **options) -> subprocess.Popen[str]:
    surroundings = {**os.environ, "OSD_STORAGE__DIRECTORY": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "osd.cli.main", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return Process(command, cwd=tmp_path, env=surroundings, text=True, **pipes)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_politely_and_what_was_finished_is_kept(osd, tmp_path: Path, number, status):
    (tmp_path / "asked.jsonl").write_text(PROMPTS)
    process = start(tmp_path, "generate", "--prompts", "asked.jsonl", "--json", "--max-tokens", "4")
    served = [process.stdout.readline() for _ in range(16)]
    process.send_signal(number)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    finished = len(served) + len(rest.splitlines())
    assert finished < 4000
    assert requests_kept(osd) >= 16


def requests_kept(osd) -> int:
    return sum(row["requests"] for row in json.loads(osd("stats", "acceptance", "--json").stdout))


def test_a_reader_that_goes_away_is_no_error_worth_a_traceback(tmp_path: Path):
    (tmp_path / "asked.jsonl").write_text(PROMPTS)
    process = start(tmp_path, "generate", "--prompts", "asked.jsonl", "--json", "--max-tokens", "4", "--no-learn")
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert "Traceback" not in errors


def test_the_worker_takes_this_process_s_place(tmp_path: Path):
    """A folder named trainer in the working directory must not be taken for ours."""
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__main__.py").write_text("raise SystemExit('the wrong trainer')")
    process = start(tmp_path, "trainer", "--once", "--draft", "default")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert "no draft named 'default'" in errors


def test_a_draft_that_somebody_trains_is_not_trained_twice(filled, tmp_path: Path):
    filled.store.samples.add([samples(number, filled.child) for number in range(10, 20)])
    held = filled.store.runs.claim("default", "another worker", ClaimTerms(1, 60, 600))
    process = start(tmp_path, "trainer", "--once", "--draft", "default")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 6, errors
    assert "being trained by another worker" in errors
    assert filled.store.runs.list("default")[0] == held
