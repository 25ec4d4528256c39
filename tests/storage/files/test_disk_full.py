"""A full disk: each write is refused with a sentence, leaves nothing, and works again once there is room."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
MOUNT = 'mount -t tmpfs -o size=1500k tmpfs "$0" && exec "$@"'


def run(directory: Path, how: str, prefix: tuple[str, ...] = ()) -> str:
    """The scenario's output; it asserts for itself."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "tests.storage.full_disk", str(directory), how],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def can_mount(directory: Path) -> bool:
    """Whether this user may mount a file system that only its own children see."""
    if not shutil.which("unshare"):
        return False
    command = [*OWN_MOUNTS, "sh", "-c", MOUNT, str(directory), "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_no_space_left_on_the_device(tmp_path: Path) -> None:
    if not can_mount(tmp_path):
        pytest.skip("this user may not mount a tmpfs of its own (unshare --user --mount)")
    said = run(tmp_path, "tmpfs", (*OWN_MOUNTS, "sh", "-c", MOUNT, str(tmp_path)))
    assert said.count("could not be written") == 8
    assert "No space left on device" in said and "disk is full" in said


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    said = run(tmp_path, "rlimit")
    assert said.count("could not be written") == 8
    assert "File too large" in said
