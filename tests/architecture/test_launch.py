"""Processes that the zygote starts are like those that are started anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.launch import Process, run

SCRIPT = """
import os, sys
print(os.getcwd(), os.environ["GIVEN"], sys.argv[1:], os.getsid(0) == os.getpid(), sys.stdin.read(), flush=True)
print("said", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """A module, and how to start it."""
    (tmp_path / "a_script.py").write_text(SCRIPT)
    (tmp_path / "a_sleeper.py").write_text("import time; print('on', flush=True); time.sleep(60)")
    (tmp_path / "a_failure.py").write_text("raise ValueError('no')")
    where = {"cwd": tmp_path, "env": {**os.environ, "GIVEN": "word", "PYTHONPATH": str(tmp_path)}}
    return lambda **more: {**where, **more}


def started(how: Callable[..., Any], options: dict[str, Any], *flags: str) -> tuple[Any, ...]:
    pipe = subprocess.PIPE
    command = [sys.executable, *flags, "-m", "a_script", "one", "two"]
    with how(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True, **options) as process:
        return (*process.communicate("asked"), process.returncode)


def test_it_is_as_if_it_were_started_anew(script) -> None:
    for flags in ([], ["-P"]):
        assert started(Process, script(), *flags) == started(subprocess.Popen, script(), *flags)


def test_signals_reach_it_and_its_end_is_told(script) -> None:
    process = Process([sys.executable, "-m", "a_sleeper"], stdout=subprocess.PIPE, text=True, **script())
    assert process.stdout.readline() == "on\n" and process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == -signal.SIGINT
    process.stdout.close()
    other = Process([sys.executable, "-m", "a_sleeper"], stdout=subprocess.PIPE, **script())
    other.kill()
    assert other.wait(30) == -signal.SIGKILL
    other.stdout.close()


def test_what_is_not_caught_is_told_on_stderr_with_status_1(script) -> None:
    done = run([sys.executable, "-m", "a_failure"], **script())
    assert done.returncode == 1 and "ValueError: no" in done.stderr and done.stdout == ""


def test_where_paths_are_to_be_safe_the_working_directory_has_no_modules(script) -> None:
    env = {**os.environ, "GIVEN": "word"}
    assert "No module named a_script" in run([sys.executable, "-P", "-m", "a_script"], **script(env=env)).stderr
